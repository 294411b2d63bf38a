package keeper

import (
	"path"
	"strings"
)

// A rename and the saving of a quota's new path cannot be one step. So before a directory with a quota is moved, the
// file of the rules says from where and to where; at a start the directory's inode tells which it was.

// quotasMove saves where the quotas of a directory, and of those below it, are about to be. What it returns is to be
// called once that has happened, or has not.
func (k *Keeper) quotasMove(key, to FileKey, newName string) (over func()) {
	d, isDir := k.inv.Directory(key)
	parent, known := k.inv.Directory(to)
	if !isDir || !known {
		return func() {}
	}
	k.rulesMu.Lock()
	defer k.rulesMu.Unlock()
	k.followQuotasLocked()
	from, there := k.inv.Path(d)
	above, _ := k.inv.Path(parent)
	var moving []*quota
	for _, q := range k.rules.quotas {
		if q.dir == nil || !there || q.path != from && !strings.HasPrefix(q.path, from+"/") {
			continue
		}
		q.moving, q.inode = path.Join(above, newName)+strings.TrimPrefix(q.path, from), k.inv.KeyOf(q.dir).Ino
		moving = append(moving, q)
	}
	if len(moving) == 0 {
		return func() {}
	}
	if err := k.saveRulesLocked(); err != nil {
		k.complain("rules", "cannot save where a directory with a quota is being moved; until that succeeds, a crash loses its quota", "directory", from, "error", err)
	}
	return func() {
		k.rulesMu.Lock()
		defer k.rulesMu.Unlock()
		for _, q := range moving {
			q.moving, q.inode = "", 0
		}
		k.rulesStale = true
	}
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
