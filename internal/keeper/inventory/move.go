package inventory

// Incoming is room that is set aside for what is about to be moved below directories with limits.
type Incoming struct {
	// Bytes is what it takes there.
	Bytes int64

	inventory *Inventory
	dirs      []*Directory
}

// ClaimMove sets room aside for a file or directory and all below it that is about to get a place in the directory to,
// in the directories above that are not above its place of now: where it is counted already, it takes no
// more. replaced leaves in exchange; it may be the zero Key. If a directory has no room, it is returned, and
// nothing is set aside. What has no record takes nothing. Release ends the claim, once the inventory was told
// of the move. With overtake it does not matter that others wait.
func (v *Inventory) ClaimMove(k, to, replaced Key, overtake bool) (in *Incoming, refused *Directory) {
	in = &Incoming{inventory: v}
	bytes, from := v.weight(k)
	in.Bytes = max(bytes-v.freed(replaced), 0)
	if in.Bytes == 0 || from == nil {
		return in, nil
	}
	v.dirs.mu.RLock()
	defer v.dirs.mu.RUnlock()
	d := v.dirs.byKey[to]
	if moved := v.dirs.byKey[k]; d == nil || moved != nil && d.belowLocked(moved) {
		return in, nil // nobody knows where, or the rename is none
	}
	for up := d; up != nil && !from.belowLocked(up); up = up.parent {
		if up.Limit() == Unlimited {
			continue
		}
		if !up.claim(in.Bytes, false, overtake) {
			in.releaseLocked()
			return in, up
		}
		up.incoming.Add(in.Bytes)
		in.dirs = append(in.dirs, up)
	}
	return in, nil
}

// freed returns what there is less once something has lost its place: a file that is in use, or has other names,
// keeps its blocks.
func (v *Inventory) freed(k Key) int64 {
	if f, ok := v.File(k); ok && (f.InUse || f.Several) {
		return 0
	}
	bytes, _ := v.weight(k)
	return bytes
}

// weight returns what is claimed for a file, or a directory and all below it, and the directory that it is
// charged to.
func (v *Inventory) weight(k Key) (bytes int64, in *Directory) {
	v.dirs.mu.RLock()
	d := v.dirs.byKey[k]
	if d != nil {
		bytes, in = d.heldLocked(), d.parent
	}
	v.dirs.mu.RUnlock()
	if d != nil {
		return bytes, in
	}
	s := v.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.files[k.Ino]
	if !ok {
		return 0, nil
	}
	bytes = f.bytes()
	if u := s.uses[k.Ino]; u != nil {
		bytes += u.reserved
	}
	return bytes, v.homeOf(&f)
}

// Release ends the claim.
func (in *Incoming) Release() {
	in.inventory.dirs.mu.RLock()
	defer in.inventory.dirs.mu.RUnlock()
	in.releaseLocked()
}

// releaseLocked ends the claim, with directories.mu held for reading at least: a directory that is moved
// leaves its part of the claim behind.
func (in *Incoming) releaseLocked() {
	for _, d := range in.dirs {
		d.claimed.Add(-in.Bytes)
		d.incoming.Add(-in.Bytes)
	}
	in.dirs = nil
}

// heldLocked is what d has claimed in the directories above it.
func (d *Directory) heldLocked() int64 { return d.claimed.Load() - d.ghost.Load() - d.incoming.Load() }
