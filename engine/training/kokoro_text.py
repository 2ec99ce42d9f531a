"""The teacher's text side: phonemes to durations and per-phoneme features (Kokoro-82M).

Batched and masked: one padded batch gives, up to rounding, what each utterance gives alone. The
other half is ``kokoro_sound.py``. Inference only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ALBERT_LAYERS = 12
ALBERT_HEADS = 12
PROSODY = slice(128, 256)
"""Which half of a style vector steers durations and pitch; the other is the timbre."""


class Weights:
    """The archive on a device, with the layers that need more than a matrix built from it."""

    def __init__(self, tensors: dict[str, Tensor], device: torch.device, half: bool) -> None:
        self.device = device
        self.half = half and device.type == "cuda"
        self.tensors = {name: value.to(device) for name, value in tensors.items()}
        self._halves = (
            {n: v.half() for n, v in self.tensors.items() if v.ndim == 3} if self.half else {}
        )
        self._lstms = {
            name.removesuffix(".weight_hh_l0"): self._lstm(name.removesuffix(".weight_hh_l0"))
            for name in self.tensors
            if name.endswith(".weight_hh_l0")
        }

    def _lstm(self, at: str) -> nn.LSTM:
        prefix = f"{at}."
        own = {n.removeprefix(prefix): v for n, v in self.tensors.items() if n.startswith(prefix)}
        hidden, inputs = own["weight_hh_l0"].shape[1], own["weight_ih_l0"].shape[1]
        lstm = nn.LSTM(inputs, hidden, batch_first=True, bidirectional=True)
        lstm.load_state_dict(own)
        return lstm.to(self.device).eval()

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def linear(self, at: str, x: Tensor) -> Tensor:
        return F.linear(x, self.tensors[f"{at}.weight"], self.tensors.get(f"{at}.bias"))

    def conv(self, at: str, x: Tensor, **shape: int) -> Tensor:
        """In float16 where that is on and the layer is wide enough to matter."""
        weight, bias = f"{at}.weight", self.tensors.get(f"{at}.bias")
        if self.half and x.shape[1] >= 64:
            low = None if bias is None else bias.half()
            return F.conv1d(x.half(), self._halves[weight], low, **shape)
        return F.conv1d(x.float(), self.tensors[weight], bias, **shape)

    def conv_transposed(self, at: str, x: Tensor, **shape: int) -> Tensor:
        return F.conv_transpose1d(
            x.float(), self.tensors[f"{at}.weight"], self.tensors.get(f"{at}.bias"), **shape
        )

    def lstm(self, at: str, x: Tensor, lengths: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, 2 hidden]; steps from ``lengths`` on are zeros."""
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        out, _ = nn.utils.rnn.pad_packed_sequence(
            self._lstms[at](packed)[0], batch_first=True, total_length=x.shape[1]
        )
        return out


class TextSide:
    """``phonemes`` int64 [B, T] (0 at both ends and as padding), ``lengths`` [B],
    ``style`` [B, 256], ``speed`` [B] -> prosody features [B, T, 640], sound features
    [B, T, 512], durations int64 [B, T] in frames of 25 ms."""

    def __init__(self, weights: Weights) -> None:
        self._w = weights

    @torch.inference_mode()
    def __call__(
        self, phonemes: Tensor, lengths: Tensor, style: Tensor, speed: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        steps = phonemes.shape[1]
        mask = torch.arange(steps, device=phonemes.device)[None] < lengths[:, None]
        prosody = self._prosody(self._albert(phonemes, mask), style[:, PROSODY], lengths, mask)
        spans = self._w.lstm("predictor.lstm", prosody, lengths)
        chances = torch.sigmoid(self._w.linear("predictor.duration_proj.linear_layer", spans))
        durations = (chances.sum(-1) / speed[:, None]).round().clamp(min=1).long() * mask
        return prosody, self._sound(phonemes, lengths, mask), durations

    def _prosody(self, x: Tensor, style: Tensor, lengths: Tensor, mask: Tensor) -> Tensor:
        shown = mask[..., None].float()
        spread = style[:, None].expand(-1, x.shape[1], -1)
        x = torch.cat([self._w.linear("bert_encoder", x), spread], -1) * shown
        for layer in range(0, 6, 2):
            at = "predictor.text_encoder.lstms"
            hidden = self._w.lstm(f"{at}.{layer}", x, lengths)
            gain, offset = self._w.linear(f"{at}.{layer + 1}.fc", style)[:, None].chunk(2, -1)
            hidden = (1 + gain) * F.layer_norm(hidden, hidden.shape[-1:]) + offset
            x = torch.cat([hidden, spread], -1) * shown
        return x

    def _sound(self, phonemes: Tensor, lengths: Tensor, mask: Tensor) -> Tensor:
        shown = mask[:, None].float()
        x = self._w["text_encoder.embedding.weight"][phonemes].transpose(1, 2) * shown
        for layer in range(3):
            at = f"text_encoder.cnn.{layer}"
            x = self._w.conv(f"{at}.0", x, padding=2).float().transpose(1, 2)
            x = F.layer_norm(x, x.shape[-1:], self._w[f"{at}.1.gamma"], self._w[f"{at}.1.beta"])
            x = F.leaky_relu(x.transpose(1, 2), 0.2) * shown
        return self._w.lstm("text_encoder.lstm", x.transpose(1, 2), lengths) * mask[..., None]

    def _albert(self, phonemes: Tensor, mask: Tensor) -> Tensor:
        w, at = self._w, "bert.embeddings"
        batch, steps = phonemes.shape
        x = (
            w[f"{at}.word_embeddings.weight"][phonemes]
            + w[f"{at}.position_embeddings.weight"][:steps]
            + w[f"{at}.token_type_embeddings.weight"][0]
        )
        x = self._norm(f"{at}.LayerNorm", x)
        x = w.linear("bert.encoder.embedding_hidden_mapping_in", x)
        at = "bert.encoder.albert_layer_groups.0.albert_layers.0"
        seen = mask[:, None, None, :]
        for _ in range(ALBERT_LAYERS):
            query, key, value = (
                w.linear(f"{at}.attention.{part}", x)
                .view(batch, steps, ALBERT_HEADS, -1)
                .transpose(1, 2)
                for part in ("query", "key", "value")
            )
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
            mixed = mixed.transpose(1, 2).reshape(batch, steps, -1)
            x = self._norm(
                f"{at}.attention.LayerNorm", x + w.linear(f"{at}.attention.dense", mixed)
            )
            inner = F.gelu(w.linear(f"{at}.ffn", x), approximate="tanh")
            x = self._norm(f"{at}.full_layer_layer_norm", x + w.linear(f"{at}.ffn_output", inner))
        return x

    def _norm(self, at: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self._w[f"{at}.weight"], self._w[f"{at}.bias"], 1e-12)
