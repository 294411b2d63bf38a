// Package quota counts how much of one limited resource each user holds, so that no user
// can take all of it.
//
// A user other than root holds at most a quarter of the total, and all of them together
// leave a sixteenth of it to root. A daemon's own user counts as root: without root's rights,
// the daemon serves hardly anybody else.
package quota

import (
	"os"
	"sync"

	"github.com/kv3fs/kv3fs/internal/invariants"
)

const (
	userPart    = 4  // a user may hold the total divided by this
	reservePart = 16 // and this part of the total is kept for root
)

// Quota counts the units of one resource by user. Its methods may be called concurrently.
type Quota struct {
	max    int64
	daemon uint32 // the daemon's own user

	mu     sync.Mutex
	used   map[uint32]int64 // by uid; no zeros
	total  int64
	others int64 // total without the favoured users'
}

// New returns a quota of max units. A max below 1 counts as 1.
func New(max int64) *Quota {
	if max < 1 {
		max = 1
	}
	return &Quota{max: max, daemon: uint32(os.Geteuid()), used: map[uint32]int64{}}
}

// Max returns how many units there are.
func (q *Quota) Max() int64 { return q.max }

// UserMax returns how many units a user other than root may hold.
func (q *Quota) UserMax() int64 { return max(q.max/userPart, 1) }

// favoured reports whether a user may have what is left.
func (q *Quota) favoured(uid uint32) bool { return uid == 0 || uid == q.daemon }

// othersMax is how many units all users but the favoured may hold together.
func (q *Quota) othersMax() int64 { return max(q.max-q.max/reservePart, 1) }

// Take gives n units to a user and reports whether there were that many for it. If not, the
// user gets none.
func (q *Quota) Take(uid uint32, n int64) bool {
	invariants.Check(n >= 0, "quota: user %d takes %d", uid, n)
	q.mu.Lock()
	defer q.mu.Unlock()
	if n > q.max-q.total || !q.favoured(uid) && (n > q.UserMax()-q.used[uid] || n > q.othersMax()-q.others) {
		return false
	}
	q.add(uid, n)
	return true
}

// Return takes back n units that a user has taken.
func (q *Quota) Return(uid uint32, n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if invariants.Enabled {
		invariants.Check(n >= 0 && n <= q.used[uid], "quota: user %d returns %d of %d", uid, n, q.used[uid])
	}
	q.add(uid, -n)
}

func (q *Quota) add(uid uint32, n int64) {
	if q.used[uid] += n; q.used[uid] == 0 {
		delete(q.used, uid)
	}
	q.total += n
	if !q.favoured(uid) {
		q.others += n
	}
}

// Used returns how many units a user holds.
func (q *Quota) Used(uid uint32) int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.used[uid]
}

// Total returns how many units all users hold.
func (q *Quota) Total() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.total
}
