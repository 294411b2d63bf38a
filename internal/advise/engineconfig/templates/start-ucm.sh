# Run this in the directory of ucm.yaml. ENABLE_UCM_PATCH is for versions of UCM
# that patch vLLM when it starts; other versions ignore it.
export ENABLE_UCM_PATCH=1
vllm serve {{or .ModelName "MODEL" | sh}} --tensor-parallel-size {{.TP}} --block-size {{.BlockTokens}} \
  --kv-transfer-config '{"kv_connector": "UCMConnector", "kv_connector_module_path": "ucm.integration.vllm.ucm_connector", "kv_role": "kv_both", "kv_connector_extra_config": {"UCM_CONFIG_FILE": "'"$PWD"'/ucm.yaml"}}'
