# The connector asks the page service on port 18000 of this host where pages are; the
# URL cannot be changed. kv3fs serve runs one there.
vllm serve {{or .ModelName "MODEL" | sh}} --tensor-parallel-size {{.TP}} --block-size {{.BlockTokens}} \
  --kv-transfer-config '{"kv_connector": "HF3FSKVConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"hf3fs_storage_path": {{jsonsh (index .Dirs 0)}}, "hf3fs_file_size": {{.FileBytes}}, "hf3fs_client_numjobs": {{.Clients}}}}'
