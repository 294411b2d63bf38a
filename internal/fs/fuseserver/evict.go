package fuseserver

import "github.com/kv3fs/kv3fs/internal/fs/tree"

// Evict is Tree.Evict, and has the kernel forget the entry.
func (m *Mount) Evict(dir, name string, want tree.Victim) error {
	removed, err := m.fs.tree.Evict(dir, name, want)
	if err == nil && removed.Parent != 0 {
		m.fs.notifier.offer(removed.Parent, removed.Name)
	}
	return err
}
