// Package classify says what a file in a cache directory is, by its path: whose it is, which entry
// of the cache it belongs to, how it ages and how it may be removed. It knows every layout that
// engines and kv3fs's own stores leave on a disk, and does no I/O: names and small facts in, values
// out.
//
// # Paths
//
// A path is relative, either to the root of an engine's files or to a directory above it such as
// the daemon's data directory: a layout may lie at any depth. It is bytes, with slashes, and each
// name in it is one that the kernel would give: not empty, ".", or "..", and without a slash or a
// zero byte. Of any other path, and of every name that only resembles one of a layout, the answer
// is Unknown. A name is compared as its writer writes it: digits with leading zeros or in the
// wrong case, a hash that does not belong into its directory, or a rank beyond the world size make
// a file unknown.
//
// # What the answer promises
//
// An answer depends on the arguments alone. Its strings are parts of the path. The zero File is
// that of an unknown file.
//
//   - Unknown: nothing is known but the mtime. Remove such a file only if the operator has said so,
//     never by itself.
//   - Entry is the same for all files of an entry and for no others. A temporary file is an entry by
//     itself: it belongs to a writer, not to the entry that it may become.
//   - Parts lists the files of an entry in the order in which to remove them. Those of them that are
//     not there are skipped.
//   - Grace is how long a file has to be left alone after it was last written, or, where Age is
//     ByUse, last used. It is never 0 but for an unknown file.
//   - Delete says how else to be careful, see its values. Whatever it says: look at the file again
//     right before, skip it if its inode, size or mtime has changed, if it is open or registered,
//     and unlink it, never truncate it.
//
// # Names that say nothing
//
// The page file of kv3fs's store Pages has a name that its users choose, and is unknown to Classify.
// Before an unknown file is removed, show its first bytes to ByHead. The file that SGLang's metadata
// server keeps its page map in has a chosen name, too, and remains unknown.
//
// # Ambiguities
//
// Some names are those of two layouts, and what lies beside the file tells which: a Context has
// that. It costs a caller that walks a tree one call of MarkOf for each name in a directory. With a
// zero Context the answer is one that does no harm if it is wrong.
package classify
