package kvstore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

// kvcmMarks are the keys that only a file of KVCM's has, of a client or of its SDK.
var kvcmMarks = []string{"sdk_config", "sdk_backend_configs", "thread_num", "queue_size", "timeout_config"}

// kvcmBackendMarks are those of a backend in such a file.
var kvcmBackendMarks = []string{"mountpoint", "root_dir", "read_iov_size", "write_iov_size", "read_iov_block_size", "write_iov_block_size"}

// otherMarks are keys that say whose a file is, if not KVCM's.
var otherMarks = slices.Concat([]string{"ucm_connectors", "store_pipeline", "storage_backends", "gds_path"}, lmcacheMarks)

// isKVCM reports whether JSON is KVCM's: a list of backends, or an object with a key that only
// KVCM has. An object with another system's key as well is nobody's.
func isKVCM(src []byte) (bool, error) {
	src = bytes.TrimSpace(src)
	if !json.Valid(src) {
		return false, nil
	}
	if src[0] == '[' {
		return true, nil
	}
	var top map[string]json.RawMessage
	if src[0] != '{' || json.Unmarshal(src, &top) != nil {
		return false, nil
	}
	has := func(keys []string) string {
		i := slices.IndexFunc(keys, func(key string) bool { _, ok := top[key]; return ok })
		if i < 0 {
			return ""
		}
		return keys[i]
	}
	ours, other := has(kvcmMarks), has(otherMarks)
	switch backend := has(kvcmBackendMarks); {
	case ours != "" && other != "":
		return false, fmt.Errorf("%s is a key of KVCM's and %s one of another system's; a file is for one of them", ours, other)
	case ours == "" && backend != "" && other == "":
		return false, fmt.Errorf("%s is a key of a backend of KVCM's SDK; write the backends in a list: [{\"type\": \"hf3fs\", ...}]", backend)
	}
	return ours != "", nil
}

// ofKVCM reads a file of KVCM's.
func ofKVCM(src []byte) (c UCMConfig, notes []string, err error) {
	var o KvcmOptions
	if o, notes, err = ReadKVCM(src); err != nil {
		return c, nil, withoutPackage(err)
	}
	c.StorePipeline, c.Kvcm = kvcmName, &o
	return c, notes, nil
}
