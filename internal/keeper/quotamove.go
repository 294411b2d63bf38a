package keeper

import (
	"path"
	"strings"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
)

// A rename and the saving of a quota's new path cannot be one step. So before a directory with a quota is moved, the
// file of the rules says from where and to where; at a start the directory's inode tells which it was.

// quotasMoving is a move of directories with quotas.
type quotasMoving struct{ quotas []*quota }

// quotasMove saves where the quotas of a directory, and of those below it, are about to be. What it returns is to be
// called once that has happened, or has not.
func (k *Keeper) quotasMove(key, to FileKey, newName string) (over func()) {
	d, isDir := k.inv.Directory(key)
	parent, known := k.inv.Directory(to)
	if !isDir || !known || len(k.quotasBelow(d)) == 0 {
		return func() {}
	}
	k.savingMu.Lock()
	defer k.savingMu.Unlock()
	m := k.beginMove(d, parent, newName)
	if err := k.saveRules(); err != nil {
		k.complain("rules", "cannot save where a directory with a quota is being moved; until that succeeds, a crash loses its quota", "directory", k.pathOf(d), "err", err)
	}
	return func() {
		k.rulesMu.Lock()
		defer k.rulesMu.Unlock()
		for _, q := range m.quotas {
			if q.move == m { // no other move, of a directory above or below, has begun since
				q.moving, q.inode, q.move = "", 0, nil
			}
		}
		k.rulesStale = true
	}
}

// quotasBelow returns the quotas of a directory, and of those below it.
func (k *Keeper) quotasBelow(d *inventory.Directory) []*quota {
	k.rulesMu.Lock()
	defer k.rulesMu.Unlock()
	_, below := k.quotasBelowLocked(d)
	return below
}

func (k *Keeper) quotasBelowLocked(d *inventory.Directory) (at string, below []*quota) {
	k.followQuotasLocked()
	at, there := k.inv.Path(d)
	for _, q := range k.rules.quotas {
		if q.dir != nil && there && (q.path == at || strings.HasPrefix(q.path, at+"/")) {
			below = append(below, q)
		}
	}
	return at, below
}

// beginMove notes where the quotas of a directory, and of those below it, are about to be.
func (k *Keeper) beginMove(d, parent *inventory.Directory, newName string) *quotasMoving {
	k.rulesMu.Lock()
	defer k.rulesMu.Unlock()
	from, below := k.quotasBelowLocked(d)
	above, _ := k.inv.Path(parent)
	m := &quotasMoving{below}
	for _, q := range below {
		q.moving, q.inode, q.move = path.Join(above, newName)+strings.TrimPrefix(q.path, from), k.inv.KeyOf(q.dir).Ino, m
	}
	return m
}

// endMoves finds out whether moves that a crash has ended had happened.
func (k *Keeper) endMoves() {
	k.rulesMu.Lock()
	defer k.rulesMu.Unlock()
	for _, q := range k.rules.quotas {
		if q.moving == "" {
			continue
		}
		isAt := func(at string) bool {
			d, err := k.inv.Find(at)
			return err == nil && k.inv.KeyOf(d).Ino == q.inode
		}
		if !isAt(q.path) && isAt(q.moving) {
			q.path = q.moving
		}
		q.moving, q.inode, k.rulesStale = "", 0, true
	}
}
