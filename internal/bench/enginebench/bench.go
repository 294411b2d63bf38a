package enginebench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/internal/advise/prefill"
	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/internal/bench/workload"
	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// Run measures and reports. An interrupted or failed run reports what was complete,
// together with the error. A run that was complete ends with a LossError if the store lost
// anything.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.fillDefaults(); err != nil {
		return nil, err
	}
	profiles, err := o.profiles()
	if err != nil {
		return nil, err
	}
	b := &bench{o: o, progress: measure.NewProgress(o.Done), rep: &Report{
		Workload: o.Workload, Store: o.Store, Storage: o.Storage, Trace: o.TracePath, Load: o.Load, BlockTokens: o.BlockTokens,
		Scale: o.Scale, Bandwidth: o.Bandwidth, LatencyMs: milliseconds(o.Latency), TimeScale: o.TimeScale,
		CPUs: runtime.NumCPU(), StartedDaemon: o.StartedDaemon, Seed: o.Seed,
		ChunkTokens: max(o.ChunkTokens, 0), OutputTokens: o.OutputTokens, TraceOutput: o.TraceOutput, Rows: []Row{},
	}}
	if err := b.settleScale(profiles); err != nil {
		return nil, err
	}
	for _, p := range profiles {
		s, err := newSubject(p, o.BlockTokens, b.rep.Scale, o.Load)
		if err != nil {
			return nil, err
		}
		b.subjects = append(b.subjects, s)
		if !p.Measured() {
			b.rep.MFU = p.MFU(1, 1)
		}
		if err := s.checkMemory(o.EngineMemory); err != nil {
			return nil, err
		}
		b.rep.EngineMemory = s.engineMemoryBytes(o.EngineMemory)
	}
	switch o.Workload {
	case UCMTable:
		err = b.ucmTable(ctx)
	case RandomTwice:
		err = b.randomTwice(ctx)
	case SharedPrefix:
		err = b.sharedPrefix(ctx)
	case Trace:
		err = b.trace(ctx)
	}
	if ctx.Err() != nil {
		b.rep.Interrupted = true
		err = ctx.Err()
	}
	var wrong *WrongBytesError
	if errors.As(err, &wrong) {
		b.rep.WrongBytes = wrong.Bytes
	}
	b.rep.Lost = b.lost.err()
	if b.rep.Lost != nil {
		err = errors.Join(err, b.rep.Lost)
	}
	return b.rep, err
}

type bench struct {
	o            Options
	rep          *Report
	subjects     []*Subject
	pooledTokens int               // for which the engine has memory
	storedBytes  int64             // of all subjects, at full size
	traced       int               // requests of the trace
	progress     *measure.Progress // of requests, or of runs of ucm-table's rows
	lost         losses
}

// settleScale chooses a scale if none is given, and checks that the blocks fit.
func (b *bench) settleScale(profiles []*prefill.Profile) error {
	d, err := b.demand(profiles)
	if err != nil {
		return err
	}
	if b.rep.Scale != 0 {
		return checkSpace(b.rep.Scale, d, b.o.FreeBytes)
	}
	b.rep.ScaleChosen, b.rep.CopyGBps = true, copyRate()
	b.rep.Scale, err = chooseScale(profiles, b.o.BlockTokens, b.o.Bandwidth*b.o.TimeScale, b.rep.CopyGBps, d, b.o.FreeBytes)
	if err == nil {
		b.o.Notice(fmt.Sprintf("blocks at 1/%d of their bytes, for a machine that copies %.1f GB/s; --scale %[1]d gives blocks of the same size again", b.rep.Scale, b.rep.CopyGBps))
	}
	return err
}

// demand returns what the workload needs at full size.
func (b *bench) demand(profiles []*prefill.Profile) (d demand, err error) {
	o := b.o
	var stored int // tokens
	longest := slices.Max(o.PromptTokens)
	switch o.Workload {
	case UCMTable:
		stored = slices.Max(o.Concurrency) * longest
		for _, atOnce := range o.Concurrency {
			for _, tokens := range o.PromptTokens {
				stored += o.Runs * atOnce * tokens * (100 - o.HitPercent) / 100
			}
		}
	case RandomTwice:
		stored = o.Prompts * longest
	case SharedPrefix:
		longest += queryTokens
		stored = o.Groups*longest + 2*o.Groups*o.Queries*(queryTokens+o.BlockTokens)
	case Trace:
		survey, err := b.survey()
		if err != nil {
			return d, err
		}
		longest = survey.longest
		stored = survey.distinct * workload.TokensPerBlock
		b.traced = survey.requests
		b.progress.Expect(b.traced)
	}
	b.pooledTokens = b.requestsInMemory() * longest
	for _, p := range profiles {
		perToken := p.BytesPerToken()
		d.storedBytes += int64(stored) * perToken
		d.poolBytes = max(d.poolBytes, int64(b.pooledTokens)*perToken)
	}
	b.storedBytes = d.storedBytes
	return d, nil
}

// requestsInMemory returns how many of the longest prompts fit into the engine's memory:
// those in flight, the next one, and some that are still being saved.
func (b *bench) requestsInMemory() int {
	atOnce := slices.Max(b.o.Concurrency)
	if b.o.Workload == UCMTable {
		return atOnce
	}
	return atOnce + 3
}

// survey is a summary of a trace.
type survey struct{ requests, distinct, longest int }

// survey reads the trace once, to its end or to MaxRequests, so that an error in its last
// line is found now.
func (b *bench) survey() (s survey, err error) {
	f, err := os.Open(b.o.TracePath)
	if err != nil {
		return s, fmt.Errorf("bench: trace: %w; \"kv3fs trace generate --out FILE\" makes one", err)
	}
	defer f.Close()
	t := workload.NewReader(f, f.Name())
	seen := map[uint64]struct{}{}
	for b.o.MaxRequests == 0 || s.requests < b.o.MaxRequests {
		r, err := t.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return s, fmt.Errorf("bench: %w", err)
		}
		s.requests++
		s.longest = max(s.longest, r.InputTokens)
		for _, id := range r.Blocks {
			seen[id] = struct{}{}
		}
	}
	if s.requests == 0 {
		return s, fmt.Errorf("bench: %s has no requests", b.o.TracePath)
	}
	s.distinct = len(seen)
	return s, nil
}

// session is an engine of one model, whose store may be closed and opened again.
type session struct {
	b         *bench
	subject   *Subject
	pool      *pool
	chain     *keys.Chain
	namespace keys.Namespace
	past      *history
	engine    *engine // nil while no store is open
}

// open makes an engine with an open store.
func (b *bench) open(ctx context.Context, s *Subject) (*session, error) {
	space := keys.Namespace{
		Model: s.Name(), DType: "bfloat16", Format: fmt.Sprintf("kv3fs bench engine, scale %d", s.scale),
		BlockTokens: s.blockTokens, Layers: s.profile.Model.Layers,
	}
	chain, err := keys.NewChain(space)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	p, err := newPool(max(s.blocks(b.pooledTokens), 1), s.layout.BlockBytes)
	if err != nil {
		return nil, err
	}
	ses := &session{b: b, subject: s, pool: p, chain: chain, namespace: space, past: newHistory()}
	if err := ses.reopen(ctx); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return ses, nil
}

// reopen flushes and closes the store and opens it again, with nothing in memory.
func (s *session) reopen(ctx context.Context) error {
	if err := s.closeStore(ctx); err != nil {
		return err
	}
	o := s.b.o
	want := Want{Layout: s.subject.layout, Namespace: s.namespace, StoredBytes: s.b.storedBytes / s.subject.scale}
	if o.Bandwidth > 0 || o.Latency > 0 {
		want.Speed = &kvstore.Speed{
			BytesPerSecond: o.Bandwidth / float64(s.subject.scale) * o.TimeScale,
			Latency:        time.Duration(float64(o.Latency) / o.TimeScale),
		}
	}
	store, err := o.Open(ctx, want)
	if err != nil {
		return err
	}
	if err := s.pool.register(store); err != nil {
		return errors.Join(fmt.Errorf("bench: %w", err), store.Close())
	}
	s.engine = &engine{
		subject: s.subject, store: store, hash: s.chain.Keys, pool: s.pool, lost: &s.b.lost,
		whole: o.Load == LoadWhole, fast: o.TimeScale, began: time.Now(), past: s.past, memory: s.b.engineMemory(s.subject),
		arrivals: make(chan *request),
		gpus:     s.subject.gpus(o),
	}
	return nil
}

func (s *session) closeStore(ctx context.Context) error {
	if s.engine == nil {
		return nil
	}
	err := s.engine.store.Flush(ctx)
	if ctx.Err() != nil {
		err = nil // it is closed without a flush
	}
	if err = errors.Join(err, s.engine.store.Close()); err != nil {
		err = fmt.Errorf("bench: closing the store: %w", err)
	}
	s.engine = nil
	return err
}

// close ends the session.
func (s *session) close(ctx context.Context) error {
	return errors.Join(s.closeStore(ctx), s.pool.close())
}

// add adds a pass to the report.
func (s *session) add(p pass) {
	s.b.rep.Rows = append(s.b.rep.Rows, rowOf(s.subject, p, s.b.o))
}
