package rtpfiles

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockfiles"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/sums"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// items is the store of an engine whose files have several blocks. It consists of others:
// one for blocks that have a file of their own, and one for the files of each number of
// blocks, to which a file is a block. So a file appears whole or not at all, and of two
// writers' files one wins, as is said of blocks. A log remembers which block is where.
type items struct {
	o      Options
	name   string
	format engineFormat
	engine transfer.Engine

	*blockfiles.Store // the blocks that have a file of their own

	openFiles func(blocks int) (*blockfiles.Store, error)
	spotLog   *sums.Logs

	chains   chains
	counters kv.Counters
	group    *batch.Group
	limits   [2]*batch.Limit // by batch.Method
	packing  chan struct{}   // one element: held while blocks are put into files
	end      func() error

	compacting chan struct{}            // one element: held while the log is compacted
	young      atomic.Pointer[sync.Map] // blocks of files that have appeared since a compaction began

	mu     sync.Mutex
	files  map[int]*opening    // by their number of blocks
	closed bool                // nothing is opened any more, and what is late closes itself
	loose  map[kv.Key]struct{} // blocks of number keys that were saved into files of their own
	ended  map[kv.Key]bool     // those that a call of packFull still has to look at; nil: there is no call
	fresh  map[file]struct{}   // files that end within an item, written since the last Flush
}

// file is a file of an engine's with several blocks.
type file struct {
	key    kv.Key
	blocks int
}

// spot is where a block is in a file.
type spot struct {
	file
	at int
}

// record is how the log has a spot, in place of checksums: the two halves of the file's key,
// its number of blocks, and the block's number.
func (s spot) record() []uint64 {
	a, b := unpair(s.key)
	return []uint64{a, b, uint64(s.blocks)<<32 | uint64(s.at)}
}

const recordNumbers = 3

func parseSpot(record []uint64) spot {
	return spot{file{pair(record[0], record[1]), int(record[2] >> 32)}, int(uint32(record[2]))}
}

// opening is a store that is being opened, or is open.
type opening struct {
	ready   chan struct{}
	store   *blockfiles.Store
	err     error
	closing error // of Close, where the store has closed itself: it was late
}

// filesOf returns the store of the files of so many blocks.
func (x *items) filesOf(blocks int) (*blockfiles.Store, error) {
	o, err := x.opening(blocks)
	if err != nil {
		return nil, err
	}
	late := time.NewTimer(x.o.Timeout)
	defer late.Stop()
	select {
	case <-o.ready:
		return o.store, o.err
	case <-late.C:
		return nil, x.overdue(blocks)
	}
}

func (x *items) overdue(blocks int) error {
	return fmt.Errorf("%w: open the files of %d blocks in %s", kv.ErrTimeout, blocks, x.o.Root)
}

// opening returns the store of the files of so many blocks as soon as it is being opened.
func (x *items) opening(blocks int) (*opening, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	o := x.files[blocks]
	switch {
	case o != nil:
	case x.closed:
		return nil, kv.ErrClosed
	default:
		o = &opening{ready: make(chan struct{})}
		x.files[blocks] = o
		go x.open(o, blocks)
	}
	return o, nil
}

func (x *items) open(o *opening, blocks int) {
	defer close(o.ready)
	o.store, o.err = x.openFiles(blocks)
	x.mu.Lock()
	if o.err != nil {
		delete(x.files, blocks)
	}
	late := x.closed && o.err == nil
	x.mu.Unlock()
	if late {
		o.closing = o.store.Close()
		o.err = errors.Join(kv.ErrClosed, o.closing)
	}
}

// closeFiles closes the stores of files. For those that are being opened it waits no longer than
// the timeout.
func (x *items) closeFiles() error {
	x.mu.Lock()
	x.closed = true
	files := maps.Clone(x.files) // an opening that fails takes itself out
	x.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), x.o.Timeout)
	defer cancel()
	errs := make(chan error)
	for blocks, o := range files {
		go func() {
			select {
			case <-o.ready:
			case <-ctx.Done():
				errs <- x.overdue(blocks)
				return
			}
			if o.err != nil {
				errs <- o.closing
				return
			}
			errs <- o.store.Close()
		}()
	}
	var all error
	for range files {
		all = errors.Join(all, <-errs)
	}
	return all
}

// bounded calls what may hang, and waits for it no longer than the timeout. After an error it
// may be running still.
func (x *items) bounded(ctx context.Context, do func() error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, x.o.Timeout, kv.ErrTimeout)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- do() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func isNumber(key kv.Key) bool {
	_, ok := key.Int64()
	return ok
}

// numberKeys returns the keys that stand for numbers, each once.
func numberKeys(blocks []kv.Key) []kv.Key {
	seen := map[kv.Key]bool{}
	var all []kv.Key
	for _, key := range blocks {
		if !seen[key] && isNumber(key) {
			seen[key] = true
			all = append(all, key)
		}
	}
	return all
}

// find returns what the log has of a block: what was read of it before, where that is
// something, or, as again does, all from before a time.
type find func(block kv.Key, asOf time.Time) (sums.Finding, error)

// recorded returns the spots that the log has of blocks.
func (x *items) recorded(ctx context.Context, blocks []kv.Key, find find) (map[kv.Key][]spot, error) {
	type answer = map[kv.Key][]spot
	asOf, result := time.Now(), make(chan answer, 1)
	err := x.bounded(ctx, func() error {
		all := answer{}
		for _, key := range blocks {
			found, err := find(key, asOf)
			if err != nil {
				return err
			}
			for _, record := range found.Sums {
				if s := parseSpot(record); s.blocks > 1 && s.blocks <= mostPack && s.at < s.blocks {
					all[key] = append(all[key], s)
				}
			}
		}
		result <- all
		return nil
	})
	if err != nil {
		return nil, err
	}
	return <-result, nil
}

// spots returns where blocks are, of those that are in a file that is there. In RTP-LLM's
// layout a file of one block is one, too, unless leaveOnes.
func (x *items) spots(ctx context.Context, blocks []kv.Key, leaveOnes bool) (map[kv.Key]spot, error) {
	blocks = numberKeys(blocks)
	if len(blocks) == 0 {
		return nil, nil
	}
	found, moved, err := x.spotsBy(ctx, blocks, leaveOnes, x.spotLog.Find)
	if err != nil || len(moved) == 0 {
		return found, err
	}
	again, _, err := x.spotsBy(ctx, moved, leaveOnes, x.spotLog.Again)
	maps.Copy(found, again)
	return found, err
}

// spotsBy is spots by what find returns. It also returns the blocks of which there are records,
// but none of the files: another process may have moved them since the log was read.
func (x *items) spotsBy(ctx context.Context, blocks []kv.Key, leaveOnes bool, find find) (found map[kv.Key]spot, moved []kv.Key, err error) {
	candidates, err := x.recorded(ctx, blocks, find)
	if err != nil {
		return nil, nil, err
	}
	for key := range candidates {
		moved = append(moved, key)
	}
	if !leaveOnes && x.format.fixed() {
		for _, key := range blocks {
			if f, ok := x.format.file([]kv.Key{key}); ok {
				candidates[key] = append(candidates[key], spot{file{f, 1}, 0})
			}
		}
	}
	there, err := x.there(ctx, candidates)
	if err != nil {
		return nil, nil, err
	}
	found = map[kv.Key]spot{}
	for key, all := range candidates {
		if i := slices.IndexFunc(all, func(s spot) bool { return there[s.file] }); i >= 0 {
			found[key] = all[i]
		}
	}
	return found, slices.DeleteFunc(moved, func(key kv.Key) bool {
		_, ok := found[key]
		return ok
	}), nil
}

// there looks for the files of spots.
func (x *items) there(ctx context.Context, candidates map[kv.Key][]spot) (map[file]bool, error) {
	there := map[file]bool{}
	byBlocks := map[int][]kv.Key{}
	for _, all := range candidates {
		for _, s := range all {
			if _, asked := there[s.file]; !asked {
				there[s.file] = false
				byBlocks[s.blocks] = append(byBlocks[s.blocks], s.key)
			}
		}
	}
	for blocks, keys := range byBlocks {
		files, err := x.filesOf(blocks)
		if err != nil {
			return nil, err
		}
		found := make([]bool, len(keys))
		if err := files.Lookup(ctx, keys, found); err != nil {
			return nil, err
		}
		for i, key := range keys {
			there[file{key, blocks}] = found[i]
		}
	}
	return there, nil
}

// isThere looks for one file.
func (x *items) isThere(ctx context.Context, f file) (bool, error) {
	there, err := x.there(ctx, map[kv.Key][]spot{{}: {{f, 0}}})
	return there[f], err
}

// enter begins a call that Close waits for and ends.
func (x *items) enter(ctx context.Context) (context.Context, func(), error) {
	if err := x.group.Enter(); err != nil {
		return nil, nil, err
	}
	ctx, cancel := x.group.With(ctx)
	return ctx, func() {
		cancel()
		x.group.Leave()
	}, nil
}

// Lookup looks for every block in all places.
func (x *items) Lookup(ctx context.Context, blocks []kv.Key, found []bool) error {
	if err := kv.CheckFound(blocks, found); err != nil {
		return err
	}
	ctx, leave, err := x.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	answers, err := x.lookup(ctx, blocks)
	if err != nil {
		return x.group.Explain(err)
	}
	copy(found, answers)
	x.counters.LookedUp.Add(int64(len(blocks)))
	for _, is := range answers {
		if is {
			x.counters.Found.Add(1)
		}
	}
	return nil
}

func (x *items) lookup(ctx context.Context, blocks []kv.Key) ([]bool, error) {
	found := make([]bool, len(blocks))
	if err := x.Store.Lookup(ctx, blocks, found); err != nil {
		return nil, err
	}
	var rest []kv.Key
	for i, key := range blocks {
		if !found[i] {
			rest = append(rest, key)
		}
	}
	spots, err := x.spots(ctx, rest, false)
	if err != nil {
		return nil, err
	}
	for i, key := range blocks {
		if _, ok := spots[key]; ok {
			found[i] = true
		}
	}
	return found, nil
}

// LookupPrefix looks up the blocks of a prompt in order, and remembers the order.
func (x *items) LookupPrefix(ctx context.Context, blocks []kv.Key) (int, error) {
	ctx, leave, err := x.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer leave()
	if order := kv.Prompt(ctx, blocks); !slices.ContainsFunc(order, func(k kv.Key) bool { return !isNumber(k) }) {
		x.chains.see(order, false)
	}
	n, err := x.prefix(ctx, blocks)
	if err != nil {
		return 0, x.group.Explain(err)
	}
	x.counters.LookedUp.Add(int64(len(blocks)))
	x.counters.Found.Add(int64(n))
	return n, nil
}

func (x *items) prefix(ctx context.Context, blocks []kv.Key) (int, error) {
	spots, err := x.spots(ctx, blocks, true)
	if err != nil {
		return 0, err
	}
	inOrder := x.inOrder(blocks, spots)
	n := 0
	for n < len(blocks) {
		if s, ok := spots[blocks[n]]; ok {
			x.used(s.file)
			n++
			continue
		}
		end := max(n+1, inOrder) // of what may be in one item of the engine's
		more, err := x.longer(ctx, blocks[:end], n)
		if err == nil && more == 0 {
			more, err = x.ones(ctx, blocks[n:])
		}
		if err == nil && more == 0 {
			more, err = x.Store.LookupPrefix(ctx, blocks[n:end])
		}
		if err != nil {
			return 0, err
		}
		if more == 0 {
			break
		}
		n += more
	}
	return n, ctx.Err()
}

// inOrder returns how many of the first blocks are in the order of the items that they are in, as
// far as those show it: the block so many before one is the first of its item.
func (x *items) inOrder(blocks []kv.Key, spots map[kv.Key]spot) int {
	for i, key := range blocks {
		if s, ok := spots[key]; ok && x.format.fixed() && s.at > 0 && s.at <= i {
			first, _ := unpair(s.key)
			if blocks[i-s.at] != keys.Int64Key(int64(first)) {
				return i
			}
		}
	}
	return len(blocks)
}

// longer returns how many blocks from the n-th on are in an item of the engine's that begins
// before them: the engine has gone on with a prompt, and written the blocks of its last item
// again.
func (x *items) longer(ctx context.Context, blocks []kv.Key, n int) (int, error) {
	l, ok := x.chains.place(blocks[n])
	before := l.at % x.o.PackBlocks
	if !x.format.fixed() || !ok || before == 0 || before > n {
		return 0, nil
	}
	has, err := x.Store.LookupPacks(ctx, blocks[n-before:])
	return max(has-before, 0), err
}

// used notes that another prompt has the blocks of a file: it then stays, whatever follows.
func (x *items) used(f file) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.fresh, f)
}

// ones returns how many of the first blocks have an item each.
func (x *items) ones(ctx context.Context, blocks []kv.Key) (int, error) {
	if !x.format.fixed() {
		return 0, nil
	}
	var keys []kv.Key
	for _, key := range blocks {
		f, ok := x.format.file([]kv.Key{key})
		if !ok {
			break
		}
		keys = append(keys, f)
	}
	if len(keys) == 0 {
		return 0, nil
	}
	files, err := x.filesOf(1)
	if err != nil {
		return 0, err
	}
	return files.LookupPrefix(ctx, keys)
}

// Stats counts shards as programs do, and damage as the stores below do.
func (x *items) Stats() kv.Stats {
	all := x.counters.Stats(x.name)
	below := []kv.Stats{x.Store.Stats()}
	for _, o := range x.opened() {
		below = append(below, o.Stats())
	}
	for _, s := range below {
		all.DroppedBlocks += s.DroppedBlocks
		all.CorruptBlocks += s.CorruptBlocks
		all.QuarantinedBlocks += s.QuarantinedBlocks
		all.UnverifiedShards += s.UnverifiedShards
	}
	return all
}

// opened returns the stores of files that are open.
func (x *items) opened() (all []*blockfiles.Store) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, o := range x.files {
		select {
		case <-o.ready:
			if o.err == nil {
				all = append(all, o.store)
			}
		default:
		}
	}
	return all
}

// sumsDir is where the checksums of files of so many blocks are.
func sumsDir(f blockfiles.Format, blocks int) string {
	if _, ok := f.(fileFormat); ok {
		return fmt.Sprintf("%s-%d", sums.DirName, blocks)
	}
	return sums.DirName
}
