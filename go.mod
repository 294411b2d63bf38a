module github.com/kv3fs/kv3fs

go 1.26
