# Run this in the directory of lmcache-gds.yaml.
export LMCACHE_CONFIG_FILE="$PWD/lmcache-gds.yaml"
export PYTHONHASHSEED=0   # the same in every process that shares these files
vllm serve {{or .ModelName "MODEL" | sh}} --tensor-parallel-size {{.TP}} \
  --kv-transfer-config '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}'
