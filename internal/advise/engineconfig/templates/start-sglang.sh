# HiCache asks a page service which pages are where, here {{.PageService}}.
# kv3fs serve runs one on port 18000.
# sglang-hf3fs.json lies in the current directory.
mkdir -p {{sh (index .Dirs 0)}}   # SGLang does not make it
export SGLANG_HICACHE_HF3FS_CONFIG_PATH="$PWD/sglang-hf3fs.json"
python3 -m sglang.launch_server --model-path {{or .ModelName "MODEL" | sh}} --tp-size {{.TP}} --page-size {{.BlockTokens}} \
  --enable-hierarchical-cache --hicache-write-policy write_through --hicache-storage-backend hf3fs
