# Run this in the directory of mooncake.env. The master preallocates {{.Entries}} files of
# 4 GiB; clients need the same environment and a put with dfs_replica_num=1.
set -a; . ./mooncake.env; set +a
mooncake_master &
