package etcdlog

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/index"
	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

// measuredLog counts the bytes of the records that are appended.
type measuredLog struct {
	*Log
	bytes atomic.Int64
}

func (l *measuredLog) Append(done func(error), recs ...[]byte) func(context.Context) error {
	for _, rec := range recs {
		l.bytes.Add(int64(len(rec)))
	}
	return l.Log.Append(done, recs...)
}

// BenchmarkSave reserves and confirms 512 new keys over three members and then, in turn, puts as many bytes as that has appended by two
// transactions with the same fence. It reports the time of both, and how many times the second the first takes.
func BenchmarkSave(b *testing.B) {
	const batch = 512
	members := etcd.Start(b, etcd.Options{})
	const prefix = "/kv3fs/bench"
	c, err := cluster.Open(b.Context(), cluster.Config{
		Endpoints: members.Endpoints(), Prefix: prefix, HostID: "a", Address: "127.0.0.1:1", Version: "test", LeaseTTL: 5 * time.Second,
	})
	if err == nil {
		err = c.Identify(b.Context(), dataID, false)
	}
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	log := &measuredLog{Log: New(c, Options{Dir: b.TempDir(), DataID: dataID})}
	x, err := index.Open(log, index.Options{Handover: c.LeaseTTL()})
	if err != nil {
		b.Fatal(err)
	}
	defer x.Close()
	space := pageservice.Space{Set: pageservice.VLLM}
	if _, err := x.Initialize(b.Context(), space, 0, pageservice.RankOptions{NumPages: pageservice.MaxPages}); err != nil {
		b.Fatal(err)
	}
	fence := log.leaderOf().term.Fence()
	keys, written := make([]string, batch), make([]pageservice.Placed, batch)
	var saves, puts time.Duration
	n := 0
	for b.Loop() {
		for i := range keys {
			keys[i] = fmt.Sprintf("%064x", n)
			n++
		}
		var bytes [2]int64
		log.bytes.Store(0)
		begin := time.Now()
		grants, err := x.Reserve(b.Context(), space, 0, keys, true)
		if err != nil || grants[0].Page == pageservice.None {
			b.Fatal(err, grants[0])
		}
		bytes[0] = log.bytes.Swap(0)
		for i, g := range grants {
			written[i] = pageservice.Placed{Key: keys[i], Page: g.Page}
		}
		if _, err := x.Confirm(b.Context(), space, 0, written, nil); err != nil {
			b.Fatal(err)
		}
		bytes[1] = log.bytes.Load()
		saves += time.Since(begin)

		var values [2]string
		for i, size := range bytes {
			values[i] = string(make([]byte, size))
		}
		begin = time.Now()
		for i, value := range values {
			key := fmt.Sprintf("%s/plain/%d/%d", prefix, n%64, i)
			answer, err := c.Client().Txn(b.Context()).If(fence).Then(clientv3.OpPut(key, value)).Commit()
			if err != nil || !answer.Succeeded {
				b.Fatal(err, "the fence does not hold")
			}
		}
		puts += time.Since(begin)
	}
	b.ReportMetric(float64(saves.Microseconds())/float64(b.N), "µs/save")
	b.ReportMetric(float64(puts.Microseconds())/float64(b.N), "µs/put")
	b.ReportMetric(float64(saves)/float64(puts), "times")
	b.ReportMetric(float64(n)/saves.Seconds(), "keys/s")
}
