package tree

import "strings"

// countedDepth is how many directories of a path say whose a file is: an engine, and one of its
// models or deployments.
const countedDepth = 2

// Directory returns the first directories of the file's path, by which what rings move is
// counted: "/" and at most countedDepth names, as valid UTF-8. Directories that only spread
// blocks end it. It stays what it was when the file came into use, also when the file is
// renamed.
func (f *File) Directory() string {
	of := f.of
	if d := of.directory.Load(); d != nil {
		return *d
	}
	of.tree.mu.RLock()
	path := of.tree.pathLocked(of.node.place)
	of.tree.mu.RUnlock()
	d := countedDirectory(path)
	of.directory.Store(&d)
	return d
}

// countedDirectory returns Directory for the path of a file below the data directory.
func countedDirectory(path string) string {
	names := strings.Split(path, "/")
	names = names[:len(names)-1]
	n := 0
	for n < min(len(names), countedDepth) && !spreads(names[n]) {
		n++
	}
	return "/" + strings.ToValidUTF8(strings.Join(names[:n], "/"), "?")
}

// spreads reports whether a directory's name is one by which engines spread blocks over
// directories, the first digits of a hash, or one for their temporary files: .temp.
func spreads(name string) bool {
	const mostDigits = 5 // UCM's data_dir_shard_bytes
	return strings.HasPrefix(name, ".") || len(name) <= mostDigits && strings.Trim(name, "-0123456789abcdef") == ""
}

// PathOf returns the path of an inode below the mount as it is now, and "" for a number that the kernel does not know. It makes no system call.
func (t *Tree) PathOf(ino uint64) string {
	n, ok := t.byIno.get(ino)
	if !ok {
		return ""
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.pathLocked(n.place)
}
