module github.com/kv3fs/kv3fs

go 1.26.0

require (
	github.com/hanwen/go-fuse/v2 v2.12.1 // indirect
	golang.org/x/sys v0.49.0 // indirect
)
