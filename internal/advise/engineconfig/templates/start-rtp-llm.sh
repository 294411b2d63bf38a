# Run this in the directory of {{.EnvFile}}. /dev/shm is the host's, which the daemon uses too:
# it needs {{.ShmGiB}} GiB. The container's memory must be at least that, besides RTP-LLM's own.
mkdir -p /3fs/stage/3fs/{{.RootDir}}
docker run --gpus all --ipc=host --ulimit memlock=-1 --ulimit nofile=1048576:1048576 --memory {{.MemoryGiB}}g \
  -v /3fs/stage:/3fs/stage:rslave --env-file {{.EnvFile}} IMAGE \
  python3 -m rtp_llm.start_server
