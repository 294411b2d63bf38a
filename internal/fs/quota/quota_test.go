package quota_test

import (
	"math"
	"os"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/internal/fs/quota"
	"github.com/kv3fs/kv3fs/internal/invariants"
)

func take(t *testing.T, q *quota.Quota, uid uint32, n int64, want bool) {
	t.Helper()
	before := q.Used(uid)
	if got := q.Take(uid, n); got != want {
		t.Errorf("user %d, who has %d, takes %d: %v, want %v", uid, before, n, got, want)
	}
	if !want && q.Used(uid) != before {
		t.Errorf("user %d got %d although it was refused", uid, q.Used(uid)-before)
	}
}

func TestUserHoldsAQuarter(t *testing.T) {
	q := quota.New(1600)
	take(t, q, 7, 401, false)
	take(t, q, 7, 400, true)
	take(t, q, 7, 1, false)
	q.Return(7, 1)
	take(t, q, 7, 1, true)
	if q.Used(7) != 400 || q.UserMax() != 400 || q.Total() != 400 {
		t.Errorf("used %d of %d, in all %d", q.Used(7), q.UserMax(), q.Total())
	}
}

// The user that the daemon runs as may have everything; run without root, the test shows more.
func TestOwnUserMayHoldAll(t *testing.T) {
	q := quota.New(1600)
	own := uint32(os.Geteuid())
	take(t, q, own+7, 401, false)
	take(t, q, own, 1600, true)
}

func TestReserveForRoot(t *testing.T) {
	q := quota.New(1600)
	for uid := range uint32(3) {
		take(t, q, 10+uid, 400, true)
	}
	take(t, q, 20, 301, false)
	take(t, q, 20, 300, true)
	take(t, q, 21, 1, false)
	take(t, q, 0, 101, false)
	take(t, q, 0, 100, true)
	q.Return(20, 300)
	take(t, q, 0, 300, true) // root may have more than its reserve
	take(t, q, 21, 1, false)
}

// What root holds of its reserve is not taken from the others.
func TestReserveIsRootsOnly(t *testing.T) {
	q := quota.New(1600)
	take(t, q, 0, 100, true)
	for uid := range uint32(3) {
		take(t, q, 10+uid, 400, true)
	}
	take(t, q, 20, 300, true)
}

// Amounts that clients choose do not overflow the sums.
func TestHugeAmounts(t *testing.T) {
	q := quota.New(math.MaxInt64)
	take(t, q, 0, math.MaxInt64-1, true)
	take(t, q, 0, math.MaxInt64, false)
	take(t, q, 7, math.MaxInt64, false)
	take(t, q, 7, 1, true)
}

// Every user can do something, however small the limit.
func TestSmallQuota(t *testing.T) {
	for max := int64(-1); max < 8; max++ {
		q := quota.New(max)
		take(t, q, 7, 1, true)
		q.Return(7, 1)
		take(t, q, 0, 1, true)
	}
}

func TestConcurrentUse(t *testing.T) {
	q := quota.New(64)
	var wg sync.WaitGroup
	for uid := range uint32(8) {
		wg.Go(func() {
			for i := range int64(1000) {
				if q.Take(uid, i%20) {
					q.Return(uid, i%20)
				}
			}
		})
	}
	wg.Wait()
	if q.Total() != 0 {
		t.Errorf("%d units are taken by nobody", q.Total())
	}
}

func TestReturnsWhatWasNotTaken(t *testing.T) {
	q := quota.New(64)
	q.Take(7, 3)
	defer func() {
		if got := recover() != nil; got != invariants.Enabled {
			t.Errorf("panicked: %v; this build asserts: %v", got, invariants.Enabled)
		}
	}()
	q.Return(7, 4)
}
