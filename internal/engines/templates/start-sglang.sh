# HiCache asks a page service which pages are where, here {{.PageService}}.
# kv3fs serve will run one on port 18000, with a later version; until then
# SGLang's own:
python3 -m sglang.srt.mem_cache.storage.hf3fs.mini_3fs_metadata_server \
  --host 127.0.0.1 --port 18000 --persistence-path "$PWD/sglang-pages.json" --save-interval 60 &
# sglang-hf3fs.json lies in the current directory.
mkdir -p {{sh (index .Dirs 0)}}   # SGLang does not make it
export SGLANG_HICACHE_HF3FS_CONFIG_PATH="$PWD/sglang-hf3fs.json"
python3 -m sglang.launch_server --model-path {{or .ModelName "MODEL" | sh}} --tp-size {{.TP}} --page-size {{.BlockTokens}} \
  --enable-hierarchical-cache --hicache-write-policy write_through --hicache-storage-backend hf3fs
