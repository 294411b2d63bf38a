package workload

import (
	"bufio"
	"cmp"
	"container/heap"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strconv"
	"time"
)

// GenerateOptions describe a synthetic trace. The zero value of a field means its default.
type GenerateOptions struct {
	Requests int    // default 1000
	Seed     uint64 // equal options make equal traces
	// RatePerSecond is the mean rate of requests in the long run. The first minutes are
	// slower, because sessions have not reached their later turns. Default 3.
	RatePerSecond float64
	// TurnsPerSession is the mean number of requests of one session. With 1, only system
	// prompts are hits. Default 1.6.
	TurnsPerSession float64
	// ThinkTime is the median pause between an answer and the next question.
	// Default one minute.
	ThinkTime time.Duration
	// SystemPrompts is the number of different system prompts with which sessions start;
	// the first is the most popular. Default 4.
	SystemPrompts int
	// QuestionTokens is the median length of what a user adds in a turn; one in a
	// hundred is twenty times as long. Default 2000.
	QuestionTokens int
	// AnswerTokens is the median length of an answer. Default 350.
	AnswerTokens int
	// MaxInputTokens ends a session whose prompt would outgrow it. Default 131072.
	MaxInputTokens int
}

func (o *GenerateOptions) fillDefaults() error {
	o.Requests = cmp.Or(o.Requests, 1000)
	o.RatePerSecond = cmp.Or(o.RatePerSecond, 3)
	o.TurnsPerSession = cmp.Or(o.TurnsPerSession, 1.6)
	o.ThinkTime = cmp.Or(o.ThinkTime, time.Minute)
	o.SystemPrompts = cmp.Or(o.SystemPrompts, 4)
	o.QuestionTokens = cmp.Or(o.QuestionTokens, 2000)
	o.AnswerTokens = cmp.Or(o.AnswerTokens, 350)
	o.MaxInputTokens = cmp.Or(o.MaxInputTokens, 128<<10)
	switch {
	case o.Requests < 0 || o.ThinkTime < 0 || o.SystemPrompts < 0 || o.QuestionTokens < 0 || o.AnswerTokens < 0:
		return fmt.Errorf("generate: numbers must not be negative")
	case !(o.RatePerSecond > 0) || o.RatePerSecond > 1e6:
		return fmt.Errorf("generate: a rate of %v requests per second; it must be between 0 and a million", o.RatePerSecond)
	case !(o.TurnsPerSession >= 1) || o.TurnsPerSession > 1e6:
		return fmt.Errorf("generate: %v turns per session; the mean must be at least 1", o.TurnsPerSession)
	case o.SystemPrompts > 1<<16:
		return fmt.Errorf("generate: %d system prompts; the most is %d", o.SystemPrompts, 1<<16)
	case o.MaxInputTokens < 4*TokensPerBlock || o.MaxInputTokens > 1<<24:
		return fmt.Errorf("generate: prompts of at most %d tokens; choose a limit between %d and %d", o.MaxInputTokens, 4*TokensPerBlock, 1<<24)
	}
	return nil
}

// Generate writes a synthetic trace to w. Sessions arrive as a Poisson process. Each starts
// with one of a few system prompts, and each of its turns sends the whole conversation so
// far plus a new question. Lengths and pauses are
// log-normal, the number of turns is geometric.
func Generate(w io.Writer, o GenerateOptions) error {
	if err := o.fillDefaults(); err != nil {
		return err
	}
	g := &generator{o: o, rand: rand.New(rand.NewPCG(o.Seed, 0x6b763366))}
	for i := range o.SystemPrompts {
		// Long enough to be worth sharing, short enough to leave space.
		tokens := min(g.length(2*TokensPerBlock, 0.8), o.MaxInputTokens/2)
		g.systems = append(g.systems, &conversation{tokens: max(tokens, TokensPerBlock)})
		g.weights = append(g.weights, 1/float64(i+1))
	}
	out := bufio.NewWriterSize(w, 64<<10)
	g.startSession()
	var line []byte
	for range o.Requests {
		s := heap.Pop(&g.turns).(*session)
		if !s.begun {
			g.startSession() // the one after this one
		}
		line = g.turn(line[:0], s)
		if _, err := out.Write(line); err != nil {
			return err
		}
	}
	return out.Flush()
}

type generator struct {
	o       GenerateOptions
	rand    *rand.Rand
	clock   float64 // arrival of the session started last, in milliseconds
	nextID  uint64
	systems []*conversation
	weights []float64
	turns   sessions
	serial  int
}

// conversation is a sequence of tokens and the ids of its full blocks. A block that is not
// full yet has no lasting id, because its content will change.
type conversation struct {
	tokens int
	ids    []uint64
}

type session struct {
	conversation
	at     float64 // when its next turn arrives, in milliseconds
	serial int     // order of those that arrive together
	begun  bool
}

// startSession makes the next session to arrive. turns always holds exactly one session
// that has not begun.
func (g *generator) startSession() {
	perMs := g.o.RatePerSecond / g.o.TurnsPerSession / 1000
	if g.serial > 0 { // the first one opens the trace
		g.clock += g.rand.ExpFloat64() / perMs
	}
	g.serial++
	heap.Push(&g.turns, &session{at: g.clock, serial: g.serial})
}

// turn appends the line of s's next request to line and schedules the one after it.
func (g *generator) turn(line []byte, s *session) []byte {
	if !s.begun {
		s.begun = true
		system := g.pickSystem()
		s.tokens = system.tokens
		g.extend(system)
		s.ids = append(s.ids, system.ids...)
	}
	s.tokens = min(s.tokens+g.question(), g.o.MaxInputTokens)
	g.extend(&s.conversation)
	answer := g.length(g.o.AnswerTokens, 0.9)

	line = fmt.Appendf(line, `{"timestamp": %d, "input_length": %d, "output_length": %d, "hash_ids": [`, int64(s.at), s.tokens, answer)
	for i, id := range s.ids {
		if i > 0 {
			line = append(line, ", "...)
		}
		line = strconv.AppendUint(line, id, 10)
	}
	if s.tokens%TokensPerBlock != 0 {
		if len(s.ids) > 0 {
			line = append(line, ", "...)
		}
		line = strconv.AppendUint(line, g.newID(), 10)
	}
	line = append(line, "]}\n"...)

	s.tokens += answer
	more := g.rand.Float64() < 1-1/g.o.TurnsPerSession
	if more && s.tokens < g.o.MaxInputTokens {
		const msPerToken = 20 // the answer takes time, too
		think := math.Exp(g.rand.NormFloat64()) * float64(g.o.ThinkTime.Milliseconds())
		s.at += float64(answer)*msPerToken + think
		heap.Push(&g.turns, s)
	}
	return line
}

// extend gives ids to the full blocks that have none.
func (g *generator) extend(c *conversation) {
	for len(c.ids) < c.tokens/TokensPerBlock {
		c.ids = append(c.ids, g.newID())
	}
}

func (g *generator) newID() uint64 {
	g.nextID++
	return g.nextID - 1
}

func (g *generator) pickSystem() *conversation {
	var sum float64
	for _, w := range g.weights {
		sum += w
	}
	x := g.rand.Float64() * sum
	for i, w := range g.weights {
		if x < w {
			return g.systems[i]
		}
		x -= w
	}
	return g.systems[len(g.systems)-1]
}

func (g *generator) question() int {
	n := g.length(g.o.QuestionTokens, 1)
	if g.rand.IntN(100) == 0 { // a user pastes a document
		n *= 20
	}
	return n
}

// length draws from a log-normal distribution around a median.
func (g *generator) length(median int, sigma float64) int {
	return max(1, int(math.Min(float64(median)*math.Exp(sigma*g.rand.NormFloat64()), 1<<24)))
}

// sessions is a heap by next arrival.
type sessions []*session

func (h sessions) Len() int      { return len(h) }
func (h sessions) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h sessions) Less(i, j int) bool {
	if h[i].at != h[j].at {
		return h[i].at < h[j].at
	}
	return h[i].serial < h[j].serial
}
func (h *sessions) Push(x any) { *h = append(*h, x.(*session)) }
func (h *sessions) Pop() any {
	old := *h
	s := old[len(old)-1]
	*h = old[:len(old)-1]
	return s
}
