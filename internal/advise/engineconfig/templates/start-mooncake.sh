# Run this in the directory of mooncake.env. The master reserves {{.Entries}} files of 4 GiB;
# clients need the same environment and a put with dfs_replica_num=1.
set -a; . ./mooncake.env; set +a
mkdir -p "$MOONCAKE_DFS_ROOT_DIR"
mooncake_master &
