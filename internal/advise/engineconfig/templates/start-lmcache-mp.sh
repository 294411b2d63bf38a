export PYTHONHASHSEED=0   # the same in every process that shares these files
mkdir -p{{range .Dirs}} {{sh .}}{{end}}   # the adapter does not create them
lmcache server --host localhost --port 5555 --chunk-size {{.BlockTokens}} \
  --l1-size-gb 20 --eviction-policy LRU \
  --l2-adapter '{"type": "hf3fs", "mount_point": {{jsonsh .Mount}}, "base_paths": {{jsonsh (join .Dirs ",")}}, "num_workers": {{.Clients}}, "ior_entries": {{.Entries}}, "io_depth": 0, "iov_size": {{.BufferBytes}}}' &
vllm serve {{or .ModelName "MODEL" | sh}} --tensor-parallel-size {{.TP}} \
  --kv-transfer-config '{"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": 5555}}'
