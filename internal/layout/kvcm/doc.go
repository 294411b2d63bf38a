// Package kvcm is how Tair KVCM lays blocks out in files on a 3FS, as its manager names
// them and its SDK writes them: names, URIs and offsets, without any I/O.
//
//	<mountpoint>/<root_dir>/<instance>/<spec>/<key>          one block
//	<mountpoint>/<root_dir>/<instance>/<spec>/<key>_<hash>   several, the n-th at n times their size
//
// Keys and hashes are hexadecimal digits without leading zeros. The manager puts up to
// key_count_per_file blocks into a file: those that one startWriteCache asked for, one
// after the other, as far as they were not stored. The file's name has the first key, and
// the hash of all of them. Which file has a block is in the manager's metadata, and the URI
// says it: hf3fs://<storage>/<path>?blkid=<n>&size=<bytes of a block>. Files have no
// header, and nothing but their size says what was written.
//
// The facts are those of alibaba/tair-kvcache: data_storage/hf3fs_backend.cc,
// client/src/internal/sdk/hf3fs_sdk.cc and common/standard_uri.cc.
package kvcm
