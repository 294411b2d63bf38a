# Run this in the directory of {{.EnvFile}}. The container has a /dev/shm of its own, which the
# daemon finds. The container's memory must be at least that, besides RTP-LLM's own.
mkdir -p /3fs/stage/3fs/{{.RootDir}}
docker run --gpus all --shm-size={{.ShmGiB}}g --ulimit memlock=-1 --ulimit nofile=1048576:1048576 --memory {{.MemoryGiB}}g \
  -v /3fs/stage:/3fs/stage:rslave --env-file {{.EnvFile}} IMAGE \
  python3 -m rtp_llm.start_server
