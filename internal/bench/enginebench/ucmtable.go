package enginebench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kv3fs/kv3fs/kvstore"
)

// ucmTable measures UCM's table: prompts that arrive together, the same part of each of
// which is stored. First it fills the store. Before each run it opens the store anew, so
// that a cache in its chain is empty.
func (b *bench) ucmTable(ctx context.Context) error {
	b.rep.Runs = b.o.Runs
	b.progress.Expect(len(b.subjects) * (len(b.o.PromptTokens)*len(b.o.Concurrency)*b.o.Runs + slices.Max(b.o.Concurrency)))
	for _, s := range b.subjects {
		if err := b.ucmModel(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) ucmModel(ctx context.Context, s *Subject) (err error) {
	most, longest := slices.Max(b.o.Concurrency), slices.Max(b.o.PromptTokens)
	ses, err := b.open(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ses.close(ctx)) }()

	if err := ses.put(ctx, streamOf(ofUsedMemory), 1); err != nil {
		return err
	}
	// The prompts of all rows begin in the same way; only the longest need to be saved.
	for i := range most {
		if err := ses.put(ctx, streamOf(ofTable, uint64(i)), b.hitBlocks(s, longest)); err != nil {
			return err
		}
		b.progress.Step()
	}
	tail := b.o.Seed // differs from those of every earlier bench
	for _, atOnce := range b.o.Concurrency {
		for _, tokens := range b.o.PromptTokens {
			hits := b.hitBlocks(s, tokens)
			p := pass{inputTokens: tokens, atOnce: atOnce}
			for range b.o.Runs {
				var prompts [][]uint32
				for i := range atOnce {
					tail++
					prompt := streamOf(ofTable, uint64(i)).appendTo(nil, 0, hits*s.blockTokens)
					prompts = append(prompts, streamOf(ofTableTails, tail).appendTo(prompt, 0, tokens-len(prompt)))
				}
				if err := ses.reopen(ctx); err != nil {
					return err
				}
				if err := ses.useMemory(ctx, atOnce*s.blocks(tokens)); err != nil {
					return err
				}
				run, err := ses.burst(ctx, prompts, hits)
				if err != nil {
					return err
				}
				p.runs = append(p.runs, run)
				b.progress.Step()
			}
			ses.add(p)
		}
	}
	return nil
}

// hitBlocks returns how many blocks of a prompt are stored.
func (b *bench) hitBlocks(s *Subject, tokens int) int {
	return s.blocks(tokens * b.o.HitPercent / 100)
}

// put saves the leading blocks of a prompt that are not stored yet.
func (s *session) put(ctx context.Context, prompt stream, blocks int) error {
	e := s.engine
	r, err := e.admit(ctx, prompt.appendTo(nil, 0, blocks*s.subject.blockTokens), 1, 1)
	if err != nil {
		return err
	}
	defer e.release(r)
	r.keys = e.hash(r.text)
	e.past.add(r.keys)
	found := make([]bool, len(r.keys))
	if err := e.store.Lookup(ctx, r.keys, found); err != nil {
		return err
	}
	var missing []kvstore.Key
	var bufs [][]byte
	for i, key := range r.keys {
		if !found[i] {
			fillBlock(r.bufs[i], key, s.subject.layout)
			missing, bufs = append(missing, key), append(bufs, r.bufs[i])
		}
	}
	if len(missing) == 0 {
		return nil
	}
	task, err := e.store.Save(ctx, s.subject.layout.ByBlock(missing, bufs))
	if err != nil {
		return err
	}
	err = task.Wait(ctx)
	r.abandoned = abandonedAny(task)
	return err
}

// useMemory loads one block, which no prompt has, into the memory that the next requests
// take. That of a running engine has been used, too: the first access to each page, which
// costs more than copying it, was long ago.
func (s *session) useMemory(ctx context.Context, blocks int) (err error) {
	bufs, err := s.pool.take(ctx, blocks)
	if err != nil {
		return err
	}
	abandoned := false
	defer func() { s.pool.put(bufs, abandoned) }()
	key := s.engine.hash(streamOf(ofUsedMemory).appendTo(nil, 0, s.subject.blockTokens))
	for some := range slices.Chunk(bufs, 8) {
		var tasks []*kvstore.Task
		for _, buf := range some {
			task, refused := s.engine.store.Load(ctx, s.subject.layout.ByBlock(key, [][]byte{buf}))
			if refused != nil {
				err = fmt.Errorf("bench: load: %w", refused)
				break
			}
			tasks = append(tasks, task)
		}
		for _, task := range tasks {
			<-task.Done()
			abandoned = abandoned || abandonedAny(task)
		}
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
	}
	if !abandoned {
		for _, buf := range bufs {
			clear(buf)
		}
	}
	return nil
}
