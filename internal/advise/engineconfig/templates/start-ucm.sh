# Run this in the directory of ucm.yaml. ENABLE_UCM_PATCH is for versions of UCM
# that patch vLLM when it starts; other versions ignore it.
export ENABLE_UCM_PATCH=1
# Set --max-model-len and --gpu-memory-utilization as the model and the GPUs need. Without
# vLLM's own prefix cache, every repeated prompt is loaded from UCM. UC_LOGGER_LEVEL=debug
# makes UCM log each transfer.
vllm serve {{or .ModelName "MODEL" | sh}} --max-model-len 20000 --tensor-parallel-size {{.TP}} \
  --gpu-memory-utilization 0.87 --block-size {{.BlockTokens}} --trust-remote-code --port 7800 \
  --enforce-eager --no-enable-prefix-caching \
  --kv-transfer-config '{"kv_connector": "UCMConnector", "kv_connector_module_path": "ucm.integration.vllm.ucm_connector", "kv_role": "kv_both", "kv_connector_extra_config": {"UCM_CONFIG_FILE": "'"$PWD"'/ucm.yaml"}}'
