#!/bin/sh
# archs.sh ROOT BUILD: what RIDGE_CUDA_ARCHS becomes with an nvcc of CUDA 12.4, which knows no Blackwell, and with GPUs that
# nvidia-smi shows: both are scripts here.
set -eu
root=$1 work=$2/archs
rm -rf "$work"
mkdir -p "$work"
cat >"$work/nvcc" <<'END'
#!/bin/sh
[ "$1" = --list-gpu-arch ] && printf 'compute_%s\n' 50 80 86 89 90
exit 0
END
cat >"$work/nvidia-smi" <<'END'
#!/bin/sh
[ -n "${GPUS:-}" ] && printf '%s\n' $GPUS
END
chmod +x "$work/nvcc" "$work/nvidia-smi"
PATH=$work:$PATH
touch "$work/libcudart_static.a"
expect() { # LIST WORDS
    cmake -S "$root" -B "$work/build" -DRIDGE_CUDA=ON -DRIDGE_NVCC="$work/nvcc" -DRIDGE_CUDART="$work/libcudart_static.a" \
        -DRIDGE_CUDA_ARCHS="$1" -DRIDGE_TOOLS=OFF -DBUILD_TESTING=OFF >"$work/log" 2>&1 || true
    tr '\n' ' ' <"$work/log" | tr -s ' ' | grep -qF -- "$2" || { echo "RIDGE_CUDA_ARCHS='$1': no '$2' in:"; cat "$work/log"; exit 1; }
}
expect release 'this nvcc does not know 100;120;100-ptx: left out -- ridge: CUDA kernels for 80;89;90a;90-ptx '
expect 80,90a 'CUDA kernels for 80;90a '
grep -rqF -e --warn-on-spills "$work/build" || { echo "nvcc does not warn of spills"; exit 1; }
if grep -rqF -e --warn-on-spills,-Werror "$work/build"; then echo "spills are errors with an nvcc that is not 13.0"; exit 1; fi
expect '90a;120' 'does not know 120: left out -- ridge: CUDA kernels for 90a '
expect 100 'knows none of the architectures 100 '
expect '80;80-ptx' 'PTX begins at 90-ptx'
expect '80;90-ptx' '90-ptx needs 90a beside it'
expect sm_90 "'sm_90' is not of the form"
expect native 'RIDGE_CUDA_ARCHS=native, but nvidia-smi shows no GPU'
export GPUS='9.0'
expect native 'CUDA kernels for 90a '
expect '' 'CUDA kernels for 90a '
expect release 'CUDA kernels for 80;89;90a;90-ptx '
GPUS='8.6 8.9 8.0 9.0'
expect native 'CUDA kernels for 80;89;90a '
GPUS='12.1'
expect native 'knows none of the architectures 120 '
echo "archs: 13 lists"
