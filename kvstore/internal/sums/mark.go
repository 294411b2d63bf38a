package sums

import (
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Mark is a permission bit that every file of the store has from the moment it is made:
// the sticky bit, which means nothing on a file. UCM's files do not have it. So a file
// with the mark and without a record is a block whose record was lost, and one without
// either is another writer's.
const Mark = fs.ModeSticky

// markedName is an empty file, itself marked. It says that all blocks that were ever
// recorded in this directory have the mark. It is missing where version 0.1.0 has written
// blocks, and has no mark where the file system does not keep it: there, a block without a
// record may be anybody's.
const markedName = "marked"

// declareMarked says that all blocks here have the mark. It is called by the process that
// made the directory, before any block is recorded.
func (ls *Logs) declareMarked() error {
	f, err := os.OpenFile(ls.markedPath(), os.O_CREATE|os.O_WRONLY, 0o644|Mark)
	if err != nil {
		return err
	}
	return f.Close()
}

func (ls *Logs) markedPath() string { return filepath.Join(ls.dir, markedName) }

// OfOthers reports whether a file with this mode certainly holds no block that was ever
// recorded here: another program wrote it.
func (ls *Logs) OfOthers(mode uint16) bool {
	if mode&unix.S_ISVTX != 0 {
		return false
	}
	if !ls.marked.Load() {
		info, err := os.Lstat(ls.markedPath())
		if err != nil || info.Mode()&Mark == 0 {
			return false
		}
		ls.marked.Store(true) // and stays so, even if the file is removed
	}
	return true
}
