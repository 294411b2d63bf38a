package rows

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/seed"
)

type count struct {
	Held
	n atomic.Int64
}

func (c *count) Total() int64    { return c.n.Load() }
func (c *count) Add(from *count) { c.n.Add(from.n.Load()) }

const mostRows = 8

// tableOf returns a table and what lets its time pass.
func tableOf() (*Table[string, *count], func(time.Duration)) {
	now := time.Unix(1e9, 0)
	return newTable[string](mostRows, func() *count { return new(count) }, func() time.Time { return now }), func(d time.Duration) { now = now.Add(d) }
}

func use(t *Table[string, *count], uid uint32, name string) { t.Of(uid, name).n.Add(1) }

func sumOf(t *Table[string, *count]) int64 {
	named, other, former := t.All()
	sum := other.n.Load() + former.n.Load()
	for _, r := range named {
		sum += r.n.Load()
	}
	return sum
}

// apart returns how many names of a user have rows; names begin with its number.
func apart(t *Table[string, *count], uid uint32) (n int) {
	named, _, _ := t.All()
	for name := range named {
		var of uint32
		if _, err := fmt.Sscanf(name, "%d ", &of); err == nil && of == uid {
			n++
		}
	}
	return n
}

// Whoever invents names takes no row from a user with fewer, and loses rows to whoever comes.
func TestShares(t *testing.T) {
	table, pass := tableOf()
	const alice, bob, mallory = 1, 2, 3
	invent := func(n int) {
		for i := range n {
			use(table, mallory, fmt.Sprintf("3 %d %d", n, i))
		}
	}
	use(table, alice, "1 a")
	invent(4 * mostRows)
	for i := range 3 {
		use(table, bob, fmt.Sprintf("2 %d", i))
	}
	use(table, alice, "1 b")
	invent(5 * mostRows)
	if a, b, m := apart(table, alice), apart(table, bob), apart(table, mallory); a != 2 || b != 3 || m != mostRows-5 {
		t.Errorf("rows: %d, %d, %d", a, b, m)
	}
	pass(2 * IdleTime) // also what others do not use is not mallory's
	invent(6 * mostRows)
	if a, b := apart(table, alice), apart(table, bob); a != 2 || b != 3 {
		t.Errorf("after an hour: %d, %d", a, b)
	}
	sum := sumOf(table)
	if want := int64(5 + 15*mostRows); sum != want {
		t.Errorf("%d were counted, want %d", sum, want)
	}
}

// A name that its user does not use any more makes room for a new one of its own.
func TestIdle(t *testing.T) {
	table, pass := tableOf()
	for i := range mostRows {
		use(table, 1, fmt.Sprintf("1 %d", i))
	}
	use(table, 1, "1 new")
	if _, ok := table.Known("1 new"); ok {
		t.Error("a name in use has lost its row")
	}
	pass(IdleTime - time.Second)
	for i := 1; i < mostRows; i++ {
		use(table, 1, fmt.Sprintf("1 %d", i))
	}
	use(table, 1, "1 new") // the table sees that they are used
	old := table.Of(1, "1 0")
	pass(2 * time.Second)
	use(table, 1, "1 new")
	if _, ok := table.Known("1 new"); !ok || !old.Gone() {
		t.Error("an idle row was not given away")
	}
	for i := 1; i < mostRows; i++ {
		if _, ok := table.Known(fmt.Sprintf("1 %d", i)); !ok {
			t.Errorf("%d is in use and has lost its row", i)
		}
	}
	old.n.Add(100) // who still counts in it
	if _, other, former := table.All(); other.n.Load() != 2 || former.n.Load() != 1+100 {
		t.Errorf("%d for others, %d of former rows", other.n.Load(), former.n.Load())
	}
}

// Rows are asked for, given away and read at the same time; nothing is counted twice.
func TestConcurrently(t *testing.T) {
	table, _ := tableOf()
	var now atomic.Int64
	table.now = func() time.Time { return time.Unix(0, now.Load()) }
	number := seed.New(t)
	var group sync.WaitGroup
	const users, each = 4, 2000
	for user := range uint64(users) {
		r := rand.New(rand.NewPCG(number, user))
		group.Go(func() {
			for range each {
				use(table, r.Uint32N(users), fmt.Sprint(r.IntN(3*mostRows)))
				now.Add(int64(IdleTime) / 100)
				if named, _, _ := table.All(); len(named) > mostRows {
					t.Errorf("%d rows", len(named))
				}
			}
		})
	}
	group.Wait()
	sum := sumOf(table)
	if sum > users*each || sum == 0 {
		t.Errorf("%d were counted of %d", sum, users*each)
	}
}

// A row that is given away makes no other one jump: what is shown as counters would say that all it has ever counted happened at once.
func TestNoRowJumps(t *testing.T) {
	table, _ := tableOf()
	for i := range 2 * mostRows {
		table.Of(1, fmt.Sprintf("1 %d", i)).n.Add(1000)
	}
	shown := func() map[string]int64 {
		named, other, _ := table.All()
		is := map[string]int64{"other": other.n.Load()}
		for name, r := range named {
			is[name] = r.n.Load()
		}
		return is
	}
	for user := uint32(2); user < 3*mostRows; user++ { // more rows than are remembered as given away
		before, sum := shown(), sumOf(table)
		for i := range 3 {
			use(table, user, fmt.Sprintf("%d %d", user, i))
		}
		for name, n := range shown() {
			if n > before[name]+3 {
				t.Errorf("user %d: %q goes from %d to %d", user, name, before[name], n)
			}
		}
		if got := sumOf(table); got != sum+3 {
			t.Errorf("user %d: the sum goes from %d to %d", user, sum, got)
		}
	}
	if _, _, former := table.All(); former.n.Load() < 1000 {
		t.Error("no row was given away")
	}
}

// looked counts how often it was looked at.
type looked struct {
	Held
	times *atomic.Int64
}

func (l *looked) Total() int64 { return l.times.Add(1) }
func (l *looked) Add(*looked)  {}

// crowded returns a table without a row to spare: users from 1 on have one each.
func crowded(most int) (t *Table[string, *looked], times *atomic.Int64) {
	now := time.Unix(1e9, 0)
	times = new(atomic.Int64)
	t = newTable[string](most, func() *looked { return &looked{times: times} }, func() time.Time { return now })
	for i := range most {
		t.Of(uint32(i+1), fmt.Sprint(i))
	}
	return t, times
}

// However many users ask for rows that there are none of, the table is not searched for each.
func TestRefusalsAreCheap(t *testing.T) {
	table, times := crowded(mostRows)
	for _, users := range []uint32{2, 1000} {
		for range 100 {
			for user := range users {
				if table.Of(user, fmt.Sprint("new of ", user)) != table.Other() {
					t.Fatalf("user %d has got a row", user)
				}
			}
		}
	}
	if n, most := times.Load(), int64((mostRows+1)*mostRows); n > most {
		t.Errorf("%d rows were looked at, more than %d", n, most)
	}
}

// BenchmarkRefused asks for rows that there are none of.
func BenchmarkRefused(b *testing.B) {
	for _, most := range []int{32, 256} {
		for _, users := range []uint32{1, 2, 1000} {
			b.Run(fmt.Sprintf("%d rows, %d users", most, users), func(b *testing.B) {
				table, _ := crowded(most)
				table.now = time.Now
				for i := uint32(0); b.Loop(); i++ {
					table.Of(1+i%users, "new")
				}
			})
		}
	}
}
