#!/bin/bash
# The built-in voice in four runs on one GPU, each short of ten minutes. From the repository's root:
#   IN=folder/of/inputs KEEP=/scratch OUT=results bash engine/training/recipe.sh STEP [minutes ...]
# Steps: check, speech, voice, model, finish; the README beside this says what each needs and leaves.
# INIT: the codec.pth to go on from (empty: from nothing). CODEC_FLAGS: more for every codec run.
# OUT stays within 8 files of 16 MiB and 64 MiB in all.
set -euo pipefail
KEEP=${KEEP:-/tmp/keep}
IN=${IN:-$KEEP/in}
INIT=${INIT-engine/builtin_voice/codec.pth}
PYTHON=${PYTHON:-python3}
export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}.typings PYTHONUNBUFFERED=1
export TORCHINDUCTOR_CACHE_DIR=$KEEP/compiled
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
mkdir -p "$KEEP" "$OUT"
train() { "$PYTHON" -P -m shoal.engine.training "$@" 2>&1 | tee -a "$OUT/$step.log"; }
speak() {
  cat "$IN"/kokoro_q8.npz.xz* >"$KEEP/kokoro.npz.xz" &&
    train teacher --archive "$KEEP/kokoro.npz.xz" --voices "$IN/voices.npz" "$@"
}
texts=(--texts "$IN/texts.npz")
aligned=("${texts[@]}" --alignment "$IN/places.npz")
codec=()
[ -z "$INIT" ] || codec+=(--init "$INIT")
[ ! -s "$IN/speaker.pth" ] || codec+=(--alike "$IN/speaker.pth")
read -ra more <<<"${CODEC_FLAGS:-}"
codec+=("${more[@]}")

step=${1:?check, speech, voice, model or finish}
shift
case $step in
check)
  df -h /dev/shm "$KEEP" | tee -a "$OUT/$step.log"
  # Kernels at their real size on a little speech: do they compile, and how fast are they?
  speech=$KEEP/check/speech
  rm -rf "$KEEP/check"
  mkdir -p "$speech"
  cp "$IN"/check/* "$speech"
  if [ "${3:-0}" != 0 ]; then
    speak "${texts[@]}" --out "$KEEP/check/teacher" --minutes "$3" || echo "the teacher failed"
  fi
  # So far along that every part is at work, the restarts as well as the discriminators.
  train codec --speech "$speech" "${texts[@]}" "${codec[@]}" --out "$KEEP/check/codec" \
    --state "$KEEP/check/codec_state" --minutes 0.05 --steps "${1:-60}" --end 0.24
  if [ "${2:-0}" != 0 ]; then
    train encode --speech "$speech" --codec "$KEEP/check/codec" --out "$KEEP/check/codes"
    train ar --codes "$KEEP/check/codes" "${aligned[@]}" --out "$KEEP/check/ar" --workers 8 \
      --state "$KEEP/check/ar_state" --minutes 0.05 --steps "$2" --end 0.65
    train export --model "$KEEP/check/ar" --codec "$KEEP/check/codec" --out "$KEEP/check/voice"
  fi
  ;;
speech)
  # The teacher, and the first part of the codec.
  # The codec is compiled while the teacher speaks: that needs processors, this the GPU.
  train codec --compile-only --speech none "${texts[@]}" --out none --state none --minutes 0 &
  compiling=$!
  # What an earlier try of this step has spoken is not spoken again.
  [ -s "$KEEP/speech/meta.npz" ] ||
    speak "${texts[@]}" --out "$KEEP/speech" --minutes "${1:-2.6}" --max-hours 80
  if [ -s "$IN/recital.npz" ]; then
    # The sentences a codec is judged by, in four voices.
    speak --only 0 1 2 3 --texts "$IN/recital.npz" --out "$KEEP/recital" --minutes 0.5 \
      --batch-phonemes 1500
    tar -C "$KEEP" -cf "$OUT/recital.tar" recital
  fi
  wait "$compiling" || echo "the codec was not compiled ahead"
  train codec --speech "$KEEP/speech" "${texts[@]}" "${codec[@]}" --out "$KEEP/codec" \
    --state "$KEEP/codec_state" --carry "$OUT" --minutes "${2:-6.2}" --end "${3:-0.64}"
  cp "$KEEP/codec/codec.pth" "$OUT"
  ;;
voice)
  # The rest of the codec, as much speech again for the DualAR alone, and the codes of both.
  [ -s "$KEEP/speech/meta.npz" ] || { echo "no speech in $KEEP: run the step speech first"; exit 3; }
  carried=()
  [ -d "$IN/codec_state" ] && carried=(--carry "$IN/codec_state")
  train codec --speech "$KEEP/speech" "${texts[@]}" "${codec[@]}" --out "$KEEP/codec" \
    --state "$KEEP/codec_state" "${carried[@]}" --minutes "${1:-3.6}" --end 1
  cp "$KEEP/codec/codec.pth" "$OUT"
  speak "${texts[@]}" --out "$KEEP/speech2" --minutes "${2:-2.6}" --max-hours 80 --seed 11
  mkdir -p "$OUT/codes"
  train encode --speech "$KEEP/speech" --codec "$KEEP/codec" --out "$KEEP/codes" \
    --part-mib 13 --carry "$OUT/codes" --carry-parts 4
  train encode --speech "$KEEP/speech2" --codec "$KEEP/codec" --out "$KEEP/codes2"
  ;;
model | finish)
  # The DualAR in two parts, and the voice; also from codes alone, on a machine that has no more.
  codes=("$KEEP/codes")
  [ -s "${codes[0]}/codes_00.npz" ] || codes=("$IN/codes")
  [ -s "${codes[0]}/codes_00.npz" ] || { echo "no codes in $KEEP or $IN"; exit 3; }
  [ ! -s "$KEEP/codes2/codes_00.npz" ] || codes+=("$KEEP/codes2")
  carried=()
  [ -d "$IN/ar_state" ] && carried=(--carry "$IN/ar_state")
  minutes=9 end=0.75
  [ "$step" = model ] || minutes=3.2 end=1
  train ar --codes "${codes[@]}" "${aligned[@]}" --out "$KEEP/ar" --state "$KEEP/ar_state" \
    "${carried[@]}" --workers 10 --dropout 0.1 --seed 2 --snapshot-at 0.8 \
    --minutes "${1:-$minutes}" --end "${2:-$end}"
  [ "$step" = finish ] || exit 0
  [ -s "$KEEP/codec/codec.pth" ] || { mkdir -p "$KEEP/codec"; cp "$IN/codec.pth" "$KEEP/codec"; }
  train export --model "$KEEP/ar" --codec "$KEEP/codec" --out "$KEEP/voice"
  mkdir -p "$OUT/voice"
  cp "$KEEP"/voice/*.safetensors "$KEEP/voice/codec.pth" "$OUT/voice"
  if [ -d "$KEEP/ar/early" ]; then
    # To choose from by word error rate; all its other files are those of the voice.
    mkdir -p "$OUT/early"
    cp "$KEEP"/ar/early/*.safetensors "$OUT/early"
  fi
  tar -C "$KEEP/voice" --exclude='*.safetensors' --exclude=codec.pth -cf "$OUT/voice/small.tar" .
  ;;
*)
  echo "$step is none of check, speech, voice, model, finish" >&2
  exit 2
  ;;
esac
