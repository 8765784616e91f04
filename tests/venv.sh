#!/bin/sh
# venv.sh BUILD: BUILD/venv with the Python packages of the tests, made once. Without python3-venv or a network what is
# missing stays missing, and the tests that need it say so and are skipped.
set -u
venv=$1/venv
need="safetensors==0.8.0 gguf==0.19.0 numpy==2.4.6 ml_dtypes==0.6.0 pytest==9.2.0 scikit-build-core==1.1.2 tokenizers==0.23.3 sentencepiece==0.2.3"
more="jax==0.10.2" # for Python 3.11 and newer: large, and its absence costs its own tests only
[ "$(cat "$venv/packages" 2>/dev/null)" = "$need $more" ] && exit 0
rm -rf "$venv"
python3 -m venv "$venv" >/dev/null 2>&1 || { echo "venv: no python3-venv"; exit 77; }
install() { # shellcheck disable=SC2068
    "$venv/bin/pip" install -q --no-compile --disable-pip-version-check --retries 1 --timeout 15 $@ >"$venv/log" 2>&1
}
# shellcheck disable=SC2086
install $need || { echo "venv: pip cannot install $need: $(tail -1 "$venv/log")"; rm -rf "$venv"; exit 77; }
# shellcheck disable=SC2086
install $more || { echo "venv: pip cannot install $more: $(tail -1 "$venv/log")"; exit 0; }
echo "$need $more" >"$venv/packages"
