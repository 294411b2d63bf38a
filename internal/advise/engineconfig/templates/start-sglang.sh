# HiCache asks a page service where pages are, here {{.PageService}}.
# kv3fs serve runs one on port 18000.
# Run this in the directory of sglang-hf3fs.json.
mkdir -p {{sh (index .Dirs 0)}}   # SGLang does not create it
export SGLANG_HICACHE_HF3FS_CONFIG_PATH="$PWD/sglang-hf3fs.json"
python3 -m sglang.launch_server --model-path {{or .ModelName "MODEL" | sh}} --tp-size {{.TP}} --page-size {{.BlockTokens}} \
  --enable-hierarchical-cache --hicache-write-policy write_through --hicache-storage-backend hf3fs
