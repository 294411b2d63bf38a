package keeper

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
	"github.com/kv3fs/kv3fs/internal/layout/classify"
)

// PageFiles are the page files whose pages the page service of this daemon hands out, as the operator
// has said.
type PageFiles interface {
	// Dirs returns their directories, below the data directory.
	Dirs() []string

	// Forget has the service forget, durably, what is in a page file, before that is removed. Once it returns
	// nil, no key points into the file; its error says why the file has to stay.
	Forget(ctx context.Context, at string) error

	// Vanished says that somebody has removed or renamed what may be one of them, or a directory of them. It
	// returns at once.
	Vanished(at string)
}

// givesUp reports whether page files of a directory may go.
func (k *Keeper) givesUp(dir string) bool {
	return k.PageFiles != nil && slices.Contains(k.PageFiles.Dirs(), path.Clean(dir))
}

// whyPageFileStays says why a page file stays, or when it goes.
func (k *Keeper) whyPageFileStays(v *victim) string {
	if !k.givesUp(v.dir) {
		return "its pages are a page service's, which frees them by itself (kv3fs pages evict), and nobody has said that it is this daemon's (--pages-files)"
	}
	return "its pages are the page service's, which frees them by itself (kv3fs pages evict); the whole file goes, with its keys, only when nothing else may go and nobody has it open"
}

func isPageFile(f *classify.File) bool { return f.Owner == classify.VLLM || f.Owner == classify.SGLang }

// needsPageFiles reports whether no other file can make room below a limit: not one that is young or in use now, either,
// unless a writer cannot wait for it.
func (k *Keeper) needsPageFiles(d *inventory.Directory, high int64, out *outcome) bool {
	if k.PageFiles == nil || !k.inv.Scanned() {
		return false
	}
	k.waitMu.Lock()
	defer k.waitMu.Unlock()
	if slices.ContainsFunc(k.queues[d], func(w *waiter) bool { return !k.mayHope(w, out) }) {
		return true
	}
	return d.Claimed() > high && out.young == 0 && !out.busy
}

// givePageFilesUp removes page files below a directory, those used longest ago first, until there is enough room: the
// last resort, when no other file may go. Each takes the keys of its rank, and of vLLM all keys, along.
func (k *Keeper) givePageFilesUp(ctx context.Context, top *inventory.Directory, enough func() bool) {
	var all []*victim
	for _, dir := range k.PageFiles.Dirs() {
		d, err := k.inv.Find(dir)
		if err != nil || !slices.Contains(k.inv.Below(top), d) {
			continue
		}
		err = k.names(ctx, place{d, dir}, func(f found) bool {
			layout := classify.Classify(f.path, classify.Context{})
			info, err := f.stat()
			if err == nil && f.known && info.AllocatedBytes > 0 && isPageFile(&layout) {
				all = append(all, k.victimOf(place{d, dir}, f, info, layout))
			}
			return true
		})
		if err != nil {
			k.complain("list", "cannot list a directory, so nothing in it can go", "directory", dir, "err", err)
		}
	}
	slices.SortStableFunc(all, func(a, b *victim) int { return int(int64(a.LastUse) - int64(b.LastUse)) })
	for _, v := range all {
		if enough() {
			return
		}
		k.givePageFileUp(ctx, v)
	}
}

// givePageFileUp removes a page file if nobody uses it. First the service forgets what is in it, so that a daemon that
// is killed in between has lost keys at worst.
func (k *Keeper) givePageFileUp(ctx context.Context, v *victim) {
	if !v.info.Regular || v.info.Links > 1 || k.pinned(v.path) || !k.idle(v.Key, v.LastUse) || k.young(&v.layout, &v.info, &outcome{}) {
		return
	}
	if err := k.PageFiles.Forget(ctx, v.path); err != nil {
		k.complain("page file "+v.path, "a page file stays", "file", v.path, "why", err)
		return
	}
	k.givingUp.Store(&v.path)
	defer k.givingUp.Store(nil)
	if !k.unlink(v.dir, v.name, v.info, &k.evicted) {
		k.complain("kept "+v.path, "a page file stays, though its keys were forgotten: somebody has it open or has just used it", "file", v.path)
		return
	}
	k.Log.Warn("gave a page file up, since no other file may go; its keys were forgotten before", "file", v.path, "bytes", v.Bytes)
}

// findPageFiles has the inventory know the directories of page files and those above them, before anybody can change
// them: until the first scan ends, it knows of no others.
func (k *Keeper) findPageFiles() {
	if k.PageFiles == nil {
		return
	}
	for _, dir := range k.PageFiles.Dirs() {
		_, _ = k.inv.Find(dir) // one that is not there yet is made later
	}
}

// vanished tells the page service of an entry that somebody else has removed or renamed.
func (k *Keeper) vanished(dir FileKey, name string, renamed bool) {
	if k.PageFiles == nil {
		return
	}
	if f := classify.Classify(name, classify.Context{}); !isPageFile(&f) && !(renamed && k.leadsToPageFiles(name)) {
		return
	}
	at, known := "", false
	if d, ok := k.inv.Directory(dir); ok {
		at, known = k.inv.Path(d)
	}
	if !known { // it may have been any of them
		for _, dir := range k.PageFiles.Dirs() {
			k.PageFiles.Vanished(dir)
		}
		return
	}
	at = path.Join(at, name)
	if own := k.givingUp.Load(); own == nil || *own != at {
		k.PageFiles.Vanished(at)
	}
}

// leadsToPageFiles reports whether a directory of that name may be one of page files, or above one.
func (k *Keeper) leadsToPageFiles(name string) bool {
	return slices.ContainsFunc(k.PageFiles.Dirs(), func(dir string) bool { return slices.Contains(strings.Split(dir, "/"), name) })
}
