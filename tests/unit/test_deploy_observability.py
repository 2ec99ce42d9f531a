"""The dashboard and the rules ask only for what a server has, and are well formed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.engine.api import EngineStats
from shoal.realtime.metrics import TTFA_PARTS, Metrics

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yaml"
SCRAPE = DEPLOY / "prometheus" / "scrape.yaml"
DASHBOARD = DEPLOY / "grafana" / "shoal.json"
NAME = re.compile(r"\b(?<![:$])shoal_[a-z0-9_]+\b(?!:)")
RECORDED = re.compile(r"\bshoal:[a-z0-9_:]+\b")
HISTOGRAM = ("_bucket", "_count", "_sum")
LABELS = {
    "shoal_refusals_total": {"reason"},
    "shoal_errors_total": {"fault"},
    "shoal_turns_ended_total": {"end"},
    "shoal_audio_seconds_total": {"format"},
    "shoal_ttfa_part_seconds_bucket": {"part", "le"},
}
"""By :class:`Metrics`; what the page shows only once it was counted."""


def page_names() -> set[str]:
    names: set[str] = set()
    for line in Metrics(EngineStats, 4).page().decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            names |= {name + end for end in HISTOGRAM} if kind == "histogram" else {name}
    return names


def panels() -> list[dict[str, Any]]:
    return json.loads(DASHBOARD.read_text())["panels"]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> Iterator[str]:
    for panel in panels():
        for target in panel.get("targets", []):
            yield target["expr"]
    for rule in rules():
        yield rule["expr"]


def test_every_metric_that_is_asked_for_is_on_the_page() -> None:
    known, asked = page_names(), set[str]()
    for query in queries():
        found = set(NAME.findall(query))
        assert found or RECORDED.search(query), query
        assert found <= known, found - known
        asked |= found
    assert len(asked) > 25
    # And nothing that the page has is forgotten.
    silent = {n for n in known if not n.endswith(("_created", "_sum", "_count"))} - asked
    assert silent <= {"shoal_voice_entries"}


def test_recorded_names_are_recorded() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    used = {name for query in queries() for name in RECORDED.findall(query)}
    assert used <= recorded and len(recorded) == 7


def test_every_expression_is_balanced_and_its_labels_exist() -> None:
    tiers = {"tier", "instance"}
    for query in queries():
        assert query.count("(") == query.count(")") and query.count("{") == query.count("}")
        for labels in re.findall(r"by \(([^)]*)\)", query):
            wanted = {label.strip() for label in labels.split(",")}
            known = {"le", "instance"}
            for name in NAME.findall(query):
                known |= LABELS.get(name, tiers if name.startswith("shoal_voice") else set())
            assert wanted <= known, query
    assert any("part" in query for query in queries()) and TTFA_PARTS


def test_the_gap_s_boundary_is_a_bucket_of_the_histogram() -> None:
    metrics = Metrics(EngineStats, 4)
    metrics.playout_lead_s.observe(0.3)
    page = metrics.page().decode()
    for query in queries():
        for edge in re.findall(r'le="([^"]+)"', query):
            assert f'shoal_playout_lead_seconds_bucket{{le="{edge}"}}' in page


def test_alerts_say_how_bad_and_what() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts) == 9
    for rule in alerts:
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"] and re.fullmatch(r"\d+[mh]", rule["for"])


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    board = json.loads(DASHBOARD.read_text())
    assert board["uid"] == "shoal" and board["schemaVersion"] >= 36
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert 0 <= place["x"] and place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert all('instance=~"$instance"' in t["expr"] for t in panel["targets"])
    assert {variable["name"] for variable in board["templating"]["list"]} == {
        "datasource",
        "instance",
    }


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")
def test_prometheus_takes_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", str(RULES)], check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")
def test_prometheus_takes_the_scrape_config_with_the_rules_beside_it() -> None:
    told = subprocess.run(["promtool", "check", "config", str(SCRAPE)], capture_output=True)
    assert told.returncode == 0, told.stdout + told.stderr
    assert str(RULES).encode() in told.stdout


def test_prometheus_asks_a_cluster_for_its_replicas() -> None:
    pytest.importorskip("ray")
    from shoal.deploy.targets import PATH

    (job,) = yaml.safe_load(SCRAPE.read_text())["scrape_configs"]
    (discovery,) = job["http_sd_configs"]
    service = yaml.safe_load_all((DEPLOY / "kuberay" / "rayservice.yaml").read_text())
    (name,) = [one["metadata"]["name"] for one in service if one["kind"] == "RayService"]
    assert discovery["url"] == f"http://{name}-serve-svc:8000{PATH}"
