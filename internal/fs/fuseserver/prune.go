package fuseserver

import (
	"math"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kv3fs/kv3fs/internal/fs/tree"
)

// pruner keeps the number of nodes near a limit. It makes the kernel drop files and
// directories from its cache that nobody uses; the kernel then forgets their nodes. If one
// user holds more than a quarter of the limit, that user's nodes go first.
//
// Linux 6.18 takes a list of nodes, and takes no lock that a request may hold. Before that
// it takes names, one by one, and only those of files: a directory may be some process's
// current one, which would lose its path.
type pruner struct {
	tree *tree.Tree
	max  int
	// byID tells the kernel to drop nodes; ENOSYS: it knows no such message.
	byID   func(nodes []uint64) fuse.Status
	byName func(parent uint64, name string)

	wake chan struct{} // capacity 1
	quit chan struct{}
	done chan struct{}
}

const (
	pruneBatch = 4096
	// forgetWait is how long the forgets of a batch may take to arrive before the next.
	forgetWait    = 100 * time.Millisecond
	shortestPause = time.Millisecond
	longestPause  = time.Second
)

func newPruner(t *tree.Tree, limit int) *pruner {
	return &pruner{tree: t, max: limit, wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
}

// noted is called when there is one more node.
func (p *pruner) noted() {
	if p.tree.Nodes() <= p.max {
		return
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run prunes until stop.
func (p *pruner) run() {
	defer close(p.done)
	from := uint64(0)
	for {
		select {
		case <-p.quit:
			return
		case <-p.wake:
		}
		share := p.max / 4
		for pause := shortestPause; p.tree.Nodes() > p.max; {
			if p.batch(&from, share) {
				share, pause = p.max/4, shortestPause
			} else if pause = min(2*pause, longestPause); pause == longestPause {
				share = math.MaxInt // the user that holds most uses all of it
			}
			select {
			case <-p.quit:
				return
			case <-time.After(pause):
			}
		}
	}
}

// batch has some nodes dropped, of the user that holds most if that is more than share, and
// reports whether any were forgotten.
func (p *pruner) batch(from *uint64, share int) bool {
	before, dropped := p.tree.Nodes(), p.tree.Dropped()
	// A little below the limit, so that not every new node needs another batch.
	most := min(before-p.max+p.max/16+1, pruneBatch)
	idle, next := p.tree.Idle(most, share, *from)
	*from = next
	if len(idle) == 0 || !p.drop(idle) {
		return false
	}
	for end := time.Now().Add(forgetWait); time.Now().Before(end); {
		if p.tree.Dropped()-dropped >= uint64(len(idle)/2) {
			return true
		}
		time.Sleep(shortestPause)
	}
	return p.tree.Dropped() > dropped
}

// drop tells the kernel and reports whether it has understood.
func (p *pruner) drop(idle []tree.Idle) bool {
	ids := make([]uint64, len(idle))
	for i, n := range idle {
		ids[i] = n.ID
	}
	if st := p.byID(ids); st != fuse.ENOSYS {
		return st.Ok()
	}
	for _, n := range idle {
		if n.File {
			p.byName(n.Name.Parent, n.Name.Name)
		}
	}
	return true
}

// stop ends run and waits for it. No message to the kernel may be able to hang: the
// connection has ended.
func (p *pruner) stop() {
	close(p.quit)
	<-p.done
}
