package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/kv3fs/kv3fs/internal/host"
)

// DefaultQuotaBytes is etcd's quota where nobody has set it.
const DefaultQuotaBytes = 2 << 30

// Member is what a member of etcd says of itself.
type Member struct {
	Endpoint string
	Err      error // why it says nothing; then the rest is zero
	Version  string
	Leader   bool // of etcd's members
	Learner  bool // it has no vote, and answers nothing but this

	// A member takes no write once its database plus the write is larger than the quota. What was deleted and
	// compacted leaves room inside of the database, which etcd fills before it grows: without etcdctl defrag, DatabaseBytes never shrinks.
	DatabaseBytes int64
	InUseBytes    int64
	QuotaBytes    int64 // 0: it does not say

	NoSpace bool // it has raised the alarm: nothing is written until that is disarmed
	Corrupt bool
}

// Space asks every member of the configuration, for at most the time that a request may take.
func (c *Cluster) Space(ctx context.Context) []Member {
	ctx, cancel := context.WithTimeout(ctx, c.attempt())
	defer cancel()
	found := make([]Member, len(c.members))
	var wg sync.WaitGroup
	for i, m := range c.members {
		wg.Go(func() { found[i] = c.ask(ctx, m) })
	}
	wg.Wait()
	return found
}

func (c *Cluster) ask(ctx context.Context, m *member) Member {
	is := Member{Endpoint: m.endpoint}
	s, err := m.status.Status(ctx, &pb.StatusRequest{})
	if err != nil {
		is.Err = explain(rpctypes.Error(err))
		return is
	}
	is.Version, is.Leader = s.Version, s.Leader != 0 && s.Leader == s.Header.MemberId
	is.Learner = s.IsLearner
	is.DatabaseBytes, is.InUseBytes, is.QuotaBytes = s.DbSize, s.DbSizeInUse, s.DbSizeQuota
	for _, e := range s.Errors {
		is.NoSpace = is.NoSpace || strings.Contains(e, pb.AlarmType_NOSPACE.String())
		is.Corrupt = is.Corrupt || strings.Contains(e, pb.AlarmType_CORRUPT.String())
	}
	if is.QuotaBytes == 0 { // before 3.6
		is.QuotaBytes = m.askQuota(ctx, c)
	}
	return is
}

// quotaHolds is for how long a quota is not asked for again: it changes only with a restart of the member.
const quotaHolds = time.Minute

// askQuota reads the quota from the metrics of a member, which old ones have nowhere else; 0 where they are elsewhere.
func (m *member) askQuota(ctx context.Context, c *Cluster) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := host.SinceBoot(); m.askedAt == 0 || now-m.askedAt > quotaHolds {
		quota, err := readQuota(ctx, m.url, c)
		if err != nil {
			c.config.Logger.Debug("etcd does not say its quota", "member", m.endpoint, "err", err)
		}
		m.quota, m.askedAt = quota, now
	}
	return m.quota
}

func readQuota(ctx context.Context, url string, c *Cluster) (int64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	if c.config.TLS != nil {
		transport.TLSClientConfig = c.config.TLS.Clone()
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(io.LimitReader(answer.Body, 4<<20))
	for lines.Scan() {
		text, ok := strings.CutPrefix(lines.Text(), "etcd_server_quota_backend_bytes ")
		if !ok {
			continue
		}
		quota, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil || quota < 0 || quota > 1<<60 {
			return 0, fmt.Errorf("a quota of %q", text)
		}
		return int64(quota), nil
	}
	return 0, errors.Join(lines.Err(), fmt.Errorf("%s: no quota among the metrics", answer.Status))
}
