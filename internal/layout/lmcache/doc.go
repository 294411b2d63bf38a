// Package lmcache knows LMCache's files: how they are named and what they begin with. It is
// pure: names and headers in, values out, and the reverse.
//
//	meta-llama-SEP-Llama-3-8B@2@0@-1f3a@half.data           a chunk, see Name
//	meta-llama-SEP-Llama-3-8B@2@0@-1f3a@half@7@user%x.data  of one layer, with a tag
//	meta-llama-SEP-Llama-3-8B@0x02000200@0@<64 digits>.data an object, see ObjectName
//
// LMCache's 3FS connector and its FS connector write chunks, each into a file beginning
// with a Header unless save_chunk_meta is off. Its multi-process server writes objects,
// through the L2 adapters hf3fs, fs and fs_native, and they have no header.
package lmcache

const (
	// Suffix ends the names of files, TempSuffix takes its place while a connector writes
	// the file, unless it has a directory for that.
	Suffix     = ".data"
	TempSuffix = ".tmp"

	// slash is what the names of files have for a slash in a key. It cannot be told from
	// the same text in a model's name.
	slash = "-SEP-"
)
