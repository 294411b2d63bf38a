package fuseserver

import (
	"testing"

	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/wire"
)

func TestVirtualNodes(t *testing.T) {
	seen := map[uint64]bool{}
	for _, uid := range []uint32{0, 1, 1000, 1<<32 - 2} {
		for _, ino := range virtualDirs() {
			node := virtualNode(uid, ino)
			if virtualIno(node) != ino || !wire.IsVirtual(node) || seen[node] {
				t.Errorf("uid %d, inode %x: node %x, back %x", uid, ino, node, virtualIno(node))
			}
			seen[node] = true
		}
	}
	for _, ino := range []uint64{tree.RootID, 77, wire.InoSubmitHigh, wire.InoIovFirst - 5, wire.InoSetConfFirst, wire.TransientIno(wire.InoRmRf), wire.TransientIno(1)} {
		if node := virtualNode(5, ino); node != ino || virtualIno(node) != ino {
			t.Errorf("inode %x: node %x", ino, node)
		}
	}
}
