package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/dustin/go-humanize"
	"github.com/schollz/progressbar/v3"

	"github.com/kv3fs/kv3fs/internal/bench/workload"
)

type replayCmd struct {
	Trace      string   `required:"" placeholder:"FILE" help:"Trace to replay, - for standard input: Mooncake's format, one JSON object per line with timestamp (ms), input_length, output_length and hash_ids (one per 512 tokens). \"kv3fs trace generate\" makes one."`
	Mount      string   `required:"" placeholder:"DIR" help:"Mount point of kv3fs or of an original 3FS."`
	Dir        string   `default:"kv3fs-replay" placeholder:"NAME" help:"Directory below the mount for the blocks. A second replay hits the blocks that the first one stored; remove the directory to start cold. Default: ${default}."`
	Ranks      int      `default:"1" range:"1..1024" help:"Ranks that work on each request in parallel, as in tensor parallelism. Each has its own rings, its own buffers and its own slice of every block."`
	Depth      int      `default:"32" range:"1..65536" help:"Blocks that a rank has in flight, and entries of its rings. The replay takes ranks times depth times block bytes of /dev/shm."`
	BlockBytes byteSize `default:"1MiB" placeholder:"SIZE" range:"1..4GiB" help:"Bytes of a rank's slice of a block (512 tokens), such as 256KiB. Blocks of different sizes are different blocks. Default: ${default}."`
	MaxBlocks  int64    `placeholder:"N" range:"1.." help:"Write at most this many blocks and skip further misses, so that the replay does not fill a small disk. Default: as many as fit in half the free space of the mount. If the trace needs more space than there is, the replay does not start."`
	Requests   int      `placeholder:"N" range:"1.." help:"Stop after this many requests. Default: the whole trace."`
	Speed      float64  `default:"0" range:"0..1e9" help:"Replay speed: 1 keeps the trace's timing, 10 is ten times faster, 0 is as fast as possible."`
	JSON       bool     `name:"json" help:"Print the report as JSON instead of a table."`
	NoProgress bool     `help:"Show no progress bar, even on a terminal."`
}

// Help is what "kv3fs replay --help" adds to the flags.
func (*replayCmd) Help() string {
	return `For example:

  kv3fs trace generate --requests 2000 --out trace.jsonl
  kv3fs replay --trace trace.jsonl --mount /mnt/3fs

For each request of the trace, the replay looks the blocks up by name, loads the
leading ones that exist through rings, and checks every byte of them. It writes
the rest through rings, under temporary names that it renames when the data is
complete. Each block and rank has a file: <mount>/<dir>/<2 hex>/<id>-r<rank>-<bytes>.

Before it starts, it says how much it will write. Blocks stay until you delete
<mount>/<dir>. The exit status is 1 if a byte was wrong or an I/O failed, not for
misses. A file with wrong bytes is kept as <file>.wrong-1, and its block is
written again.`
}

// Run replays the trace.
func (c *replayCmd) Run(ctx context.Context, out io.Writer, values *flagValues) error {
	o := workload.ReplayOptions{
		Mount: c.Mount, Dir: c.Dir, Ranks: c.Ranks, Depth: c.Depth,
		BlockBytes: int64(c.BlockBytes), MaxBlocks: c.MaxBlocks,
		MaxRequests: c.Requests, Speed: c.Speed,
	}
	if err := o.Check(); err != nil {
		return mistake{err}
	}
	source, survey, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer source.Close()

	if survey != nil {
		o.DistinctBlocks = int64(survey.DistinctBlocks)
	}
	bar := c.progress(survey)
	o.Notice, o.Done = bar.notice, func(n int) { bar.Set(n) }
	name := c.Trace
	if name == "-" {
		name = os.Stdin.Name()
	}
	report, err := workload.Replay(ctx, workload.NewReader(source, name), o)
	bar.clear()
	if err != nil && report != nil {
		err = fmt.Errorf("replay: %w", err)
	}
	var table *replayTable
	if report != nil {
		table = &replayTable{report, survey}
	}
	return printMeasured(ctx, out, values, "replay", table, err, c.JSON)
}

// replayTable is a replay's report; its table also compares it with the trace.
type replayTable struct {
	*workload.Report
	survey *workload.Survey
}

// WriteTable writes the report as text.
func (t *replayTable) WriteTable(w io.Writer) error { return t.Report.WriteTable(w, t.survey) }

// open opens the trace. It first reads a regular file to its end, so that an error in the
// last line is found now and not after an hour. survey is nil for a pipe.
func (c *replayCmd) open(ctx context.Context) (io.ReadCloser, *workload.Survey, error) {
	if c.Trace == "-" {
		return standardInput(ctx), nil, nil
	}
	f, err := os.Open(c.Trace)
	if err != nil {
		return nil, nil, fmt.Errorf("trace: %w; \"kv3fs trace generate --out FILE\" makes one", err)
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return f, nil, err
	}
	survey, err := workload.TakeSurvey(workload.NewReader(f, f.Name()), c.Requests)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, &survey, nil
}

// standardInput returns the standard input. Reading it ends with ctx, although nobody may
// ever write there again.
func standardInput(ctx context.Context) io.ReadCloser {
	out, in := io.Pipe()
	context.AfterFunc(ctx, func() { in.CloseWithError(ctx.Err()) })
	go func() {
		_, err := io.Copy(in, os.Stdin)
		in.CloseWithError(err)
	}()
	return out
}

func (c *replayCmd) progress(survey *workload.Survey) bar {
	total := -1
	if survey != nil {
		total = survey.Requests
	} else if c.Requests > 0 {
		total = c.Requests
	}
	return newBar("replay", "replaying", total, c.NoProgress,
		progressbar.OptionShowIts(), progressbar.OptionSetItsString("requests"))
}

// byteSize is a number of bytes as people write it: 4096, 64k, 256KiB, 1.5GiB. A bare
// k, m, g or t counts in powers of 1024, as in dd and fio; KB, MB and GB count in powers
// of 1000.
type byteSize int64

// UnmarshalText parses such a number.
func (b *byteSize) UnmarshalText(text []byte) error {
	s := string(text)
	if n := len(s); n > 0 {
		switch s[n-1] {
		case 'k', 'K', 'm', 'M', 'g', 'G', 't', 'T':
			s += "iB"
		}
	}
	n, err := humanize.ParseBytes(s)
	if err != nil || n == 0 || n > 1<<62 {
		return fmt.Errorf("%q is not a size; write 4096, 256KiB or 1GiB", text)
	}
	*b = byteSize(n)
	return nil
}

// exact returns the size so that UnmarshalText reads the same.
func (b byteSize) exact() string {
	for shift, unit := range map[int]string{10: "KiB", 20: "MiB", 30: "GiB", 40: "TiB"} {
		if n := int64(b) >> shift; n<<shift == int64(b) && n > 0 && n%1024 != 0 {
			return fmt.Sprint(n, unit)
		}
	}
	return fmt.Sprint(int64(b))
}

func (b byteSize) String() string { return humanize.IBytesN(uint64(b), 3) }
