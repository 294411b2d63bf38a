package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
)

// pagesClientFlags select a running page service and some of its keys.
type pagesClientFlags struct {
	URL       string        `name:"url" default:"http://127.0.0.1:18000" help:"Where the page service listens: http://HOST:PORT or unix:PATH."`
	Namespace string        `placeholder:"NAME" help:"Namespace. Default: the one without a name."`
	Set       string        `placeholder:"SET" help:"One set of keys, as stat shows it: vllm, or sglang/POOL/RANK. Default: all sets of the namespace; for forget-rank, vllm."`
	TokenFile givenPath     `placeholder:"FILE" help:"File with the token, if the service needs one."`
	Timeout   time.Duration `default:"30s" range:"1ms..24h" help:"How long to wait for each answer."`
	JSON      bool          `name:"json" help:"Print JSON instead of a table."`
}

func (f *pagesClientFlags) client() (*httpserver.Client, error) {
	if !strings.HasPrefix(f.URL, "http://") && !strings.HasPrefix(f.URL, "https://") && !strings.HasPrefix(f.URL, "unix:") {
		return nil, bad("url", "%q is neither http://HOST:PORT nor unix:PATH", f.URL)
	}
	token, err := readToken(f.TokenFile)
	if err != nil {
		return nil, bad("token-file", "%v", err)
	}
	return httpserver.NewClient(f.URL, token, f.Timeout), err
}

// chosen returns the spaces that the flags select. It returns an error if there is none.
func (f *pagesClientFlags) chosen(ctx context.Context, c *httpserver.Client) ([]pageservice.SpaceState, error) {
	all, err := c.Stat(ctx)
	if err != nil {
		return nil, err
	}
	var chosen []pageservice.SpaceState
	for _, s := range all {
		if s.Space.Namespace == f.Namespace && (f.Set == "" || s.Space.Set == f.Set) {
			chosen = append(chosen, s)
		}
	}
	if len(chosen) == 0 {
		return nil, f.noSuchSpace(all)
	}
	return chosen, nil
}

// failed returns the error of a command. If a signal interrupted it, it also prints the
// JSON of what was complete.
func (f *pagesClientFlags) failed(ctx context.Context, out io.Writer, command string, report any, err error) error {
	if !f.JSON || ctx.Err() == nil {
		return err
	}
	return cmp.Or(err, writeJSON(out, command, true, report))
}

// noSuchSpace returns the error that the flags select nothing. It names what exists.
func (f *pagesClientFlags) noSuchSpace(all []pageservice.SpaceState) error {
	var there []string
	for _, s := range all {
		there = append(there, s.Space.Set+" in "+namespaceName(s.Space.Namespace))
	}
	if len(there) == 0 {
		there = []string{"nothing yet"}
	}
	if most := 10; len(there) > most {
		there = append(there[:most], fmt.Sprintf("and %d more", len(there)-most))
	}
	return fmt.Errorf("no engine has initialised %s in %s; there is %s", setName(f.Set), namespaceName(f.Namespace), strings.Join(there, ", "))
}

func setName(s string) string {
	if s == "" {
		return "anything"
	}
	return strconv.Quote(s)
}

func namespaceName(s string) string {
	if s == "" {
		return "the default namespace"
	}
	return "namespace " + strconv.Quote(s)
}

func spaceName(s pageservice.Space) string {
	if s.Namespace == "" {
		return s.Set
	}
	return s.Namespace + " " + s.Set
}

type pagesStatCmd struct{ pagesClientFlags }

func (c *pagesStatCmd) Run(ctx context.Context, out io.Writer) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	var store *httpserver.StoreState
	if s, err := client.Store(ctx); err == nil { // an older service does not tell
		store = &s
	}
	there, err := client.Stat(ctx)
	if err != nil {
		if !c.JSON && store != nil {
			err = cmp.Or(printStore(out, store), err)
		}
		return c.failed(ctx, out, "pages stat", pagesStat{Store: store}, err)
	}
	all := slices.DeleteFunc(slices.Clone(there), func(s pageservice.SpaceState) bool {
		return c.Namespace != "" && s.Space.Namespace != c.Namespace || c.Set != "" && s.Space.Set != c.Set
	})
	switch {
	case c.JSON:
		return writeJSON(out, "pages stat", false, pagesStat{all, store})
	}
	if err := printStore(out, store); err != nil {
		return err
	}
	switch {
	case len(there) == 0:
		_, err := fmt.Fprintln(out, "No engine has initialised a rank yet.")
		return err
	case len(all) == 0:
		return c.noSuchSpace(there)
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "namespace\tset\tranks\tpages\tfree\tkept\treserved\tkeyed\tresting\tkeys\tcomplete\tleased\thits\tmisses\tevicted\trefused\t")
	for _, s := range all {
		p := sumPages(s.Ranks)
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n",
			orDefault(s.Space.Namespace), s.Space.Set, ranksOf(s),
			humanize.Comma(p.NumPages), humanize.Comma(p.Free), humanize.Comma(p.KeptFree), humanize.Comma(p.Reserved), keyedOf(s), humanize.Comma(p.Quarantined),
			humanize.Comma(s.Keys), humanize.Comma(s.Complete), humanize.Comma(s.Leased),
			humanize.Comma(s.Counters.Hits), humanize.Comma(s.Counters.Misses), humanize.Comma(s.Counters.Evicted), humanize.Comma(s.Counters.Refused))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, s := range all {
		for _, hint := range hints(s) {
			fmt.Fprintf(out, "\n%s: %s\n", spaceName(s.Space), hint)
		}
	}
	return nil
}

// printStore prints where the page index is, and how far hosts are, if other hosts share it.
func printStore(out io.Writer, s *httpserver.StoreState) error {
	if s == nil || s.Store == httpserver.Embedded && s.Why == "" {
		return nil
	}
	fmt.Fprintf(out, "The page index is in %s. Host %s is %s", s.Store, s.Host, s.Role)
	if s.Leader != nil && s.Leader.Host != s.Host {
		fmt.Fprintf(out, "; %s at %s leads", s.Leader.Host, s.Leader.Address)
	}
	fmt.Fprintf(out, ". It has applied %s of %s entries of the log.\n", humanize.Comma(int64(s.Applied)), humanize.Comma(int64(s.Head)))
	if s.Why != "" {
		fmt.Fprintf(out, "Problem: %s.\n", s.Why)
	}
	if s.Conflict != "" {
		fmt.Fprintf(out, "Hosts disagree: %s.\n", s.Conflict)
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(s.Hosts) > 0 {
		fmt.Fprintln(t, "\nhost\taddress\tversion\trole\tapplied")
		for _, h := range s.Hosts {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", h.Host, h.Address, h.Version, h.Role, humanize.Comma(int64(h.Applied)))
		}
	}
	if len(s.Members) > 0 {
		fmt.Fprintln(t, "\netcd\tversion\tin use\tdatabase\tquota\tproblem")
		for _, m := range s.Members {
			quota := "unknown"
			if m.QuotaBytes > 0 {
				quota = humanize.IBytes(uint64(m.QuotaBytes))
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", m.Address, m.Version, humanize.IBytes(uint64(m.UsedBytes)), humanize.IBytes(uint64(m.Bytes)), quota, strings.Join(append(m.Alarms, m.Error), " "))
		}
	}
	fmt.Fprintln(t)
	return t.Flush()
}

func orDefault(namespace string) string {
	if namespace == "" {
		return "(default)" // which cannot be the name of a namespace
	}
	return namespace
}

// ranksOf shows the number of ranks, and the number that a key needs if the two differ.
func ranksOf(s pageservice.SpaceState) string {
	if s.World == len(s.Ranks) {
		return strconv.Itoa(s.World)
	}
	return fmt.Sprintf("%d of %d", len(s.Ranks), s.World)
}

// keyedOf shows how many pages belong to keys, also by rank if the ranks differ.
func keyedOf(s pageservice.SpaceState) string {
	all := humanize.Comma(sumPages(s.Ranks).Keyed)
	if !slices.ContainsFunc(s.Ranks, func(r pageservice.RankPages) bool { return r.Keyed != s.Ranks[0].Keyed }) {
		return all
	}
	var each []string
	for _, r := range s.Ranks {
		each = append(each, fmt.Sprintf("%d:%d", r.Rank, r.Keyed))
	}
	return all + " (" + strings.Join(each, " ") + ")"
}

// lacking names the ranks that lack most of the keys.
func lacking(s pageservice.SpaceState) string {
	var all []string
	for _, r := range s.Ranks {
		if r.Keyed < s.Keys/2 {
			all = append(all, strconv.Itoa(r.Rank))
		}
	}
	if len(all) == 0 {
		return "different ranks"
	}
	return "rank " + strings.Join(all, ", ")
}

func sumPages(ranks []pageservice.RankPages) (sum pageservice.RankPages) {
	for _, r := range ranks {
		sum.NumPages += r.NumPages
		sum.Free += r.Free
		sum.KeptFree += r.KeptFree
		sum.Reserved += r.Reserved
		sum.Keyed += r.Keyed
		sum.Quarantined += r.Quarantined
	}
	return sum
}

// hints explains numbers that indicate a problem.
func hints(s pageservice.SpaceState) (all []string) {
	p := sumPages(s.Ranks)
	if s.World > len(s.Ranks) {
		all = append(all, fmt.Sprintf("%d of %d ranks have initialised; no key is complete before all have.", len(s.Ranks), s.World))
	}
	if s.Counters.Refused > 0 {
		all = append(all, humanize.Comma(s.Counters.Refused)+" keys got no page since the start, because every page was in use: the page file is too small for what is read at once, or the lease is too long.")
	}
	if p.Reserved > p.Keyed && p.Reserved > p.Free && p.Reserved > 1 {
		all = append(all, "most pages are reserved and not confirmed: writers die or are slow. The pages are released automatically.")
	}
	if s.Keys > 0 && s.Complete < s.Keys/2 && len(s.Ranks) > 1 {
		all = append(all, "most keys are not complete, so no engine finds them. Missing: "+lacking(s)+". A rank that does not confirm may be gone; if so, run kv3fs pages forget-rank --rank N.")
	}
	return all
}

// The reports of the commands, as JSON.
type (
	pagesStat struct {
		Spaces []pageservice.SpaceState `json:"spaces"`
		Store  *httpserver.StoreState   `json:"store,omitempty"` // as the service sees it that was asked
	}
	pagesLists struct {
		Spaces []pagesListed `json:"spaces"`
	}
	pagesListed struct {
		Space   pageservice.Space   `json:"space"`
		Entries []pageservice.Entry `json:"entries"`
	}
	pagesRemovals struct {
		Spaces []pagesRemoved `json:"spaces"`
	}
	pagesRemoved struct {
		Space pageservice.Space `json:"space"`
		Keys  int64             `json:"keys"` // that were removed
	}
	pagesForgotten struct {
		Space pageservice.Space `json:"space"`
		Rank  int               `json:"rank"`
	}
)

type pagesListCmd struct {
	pagesClientFlags
	After string `placeholder:"KEY" help:"List keys after this one."`
	Limit int    `default:"100" range:"1..10000" help:"Most keys to list in each set, up to 10000."`
}

func (c *pagesListCmd) Run(ctx context.Context, out io.Writer) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	lists := []pagesListed{}
	chosen, err := c.chosen(ctx, client)
	if err != nil {
		return c.failed(ctx, out, "pages ls", pagesLists{lists}, err)
	}
	for _, s := range chosen {
		entries, err := client.List(ctx, s.Space, c.After, c.Limit)
		if err != nil {
			return c.failed(ctx, out, "pages ls", pagesLists{lists}, err)
		}
		lists = append(lists, pagesListed{s.Space, entries})
	}
	if c.JSON {
		return writeJSON(out, "pages ls", false, pagesLists{lists})
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "set\tkey\tpages\tcomplete\tunused for\tleased for")
	for _, l := range lists {
		for _, e := range l.Entries {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", spaceName(l.Space), printable(e.Key), pagesOf(e.Pages), yesNo(e.Complete), e.Idle.Round(time.Second), e.Lease.Round(time.Second))
		}
	}
	return t.Flush()
}

// printable returns a key unchanged, or quoted if it is not safe to print on a terminal.
func printable(key string) string {
	if quoted := strconv.Quote(key); quoted != `"`+key+`"` || key == "" {
		return quoted
	}
	return key
}

// pagesOf formats pages as rank:page.
func pagesOf(byRank map[int]int64) string {
	var all []string
	for _, rank := range slices.Sorted(maps.Keys(byRank)) {
		all = append(all, fmt.Sprintf("%d:%d", rank, byRank[rank]))
	}
	return strings.Join(all, " ")
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

type pagesEvictCmd struct {
	pagesClientFlags
	Keys int `required:"" placeholder:"N" range:"1..1073741824" help:"Most keys to remove in each set. Keys that an engine has just located stay."`
}

func (c *pagesEvictCmd) Run(ctx context.Context, out io.Writer) error {
	return c.each(ctx, out, "pages evict", "evicted", func(client *httpserver.Client, s pageservice.SpaceState) (int64, error) {
		n, err := client.Evict(ctx, s.Space, c.Keys)
		return int64(n), err
	})
}

type pagesClearCmd struct {
	pagesClientFlags
	Yes bool `help:"Confirm the removal."`
}

func (c *pagesClearCmd) Run(ctx context.Context, out io.Writer) error {
	if !c.Yes {
		return bad("yes", "clear removes every key of the namespace, or of --set; give it to confirm")
	}
	return c.each(ctx, out, "pages clear", "cleared", func(client *httpserver.Client, s pageservice.SpaceState) (int64, error) {
		return s.Keys, client.Clear(ctx, s.Space)
	})
}

type pagesForgetRankCmd struct {
	pagesClientFlags
	Rank int  `required:"" placeholder:"N" range:"0..4095" help:"The rank's number, as stat shows it in the column keyed."`
	Yes  bool `help:"Confirm the removal."`
}

func (c *pagesForgetRankCmd) Run(ctx context.Context, out io.Writer) error {
	if !c.Yes {
		return bad("yes", "forget-rank drops all pages of the rank, and an engine that still uses the rank must initialise it again; give it to confirm")
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	if c.Set == "" {
		c.Set = pageservice.VLLM // the only set with several ranks
	}
	s := pageservice.Space{Namespace: c.Namespace, Set: c.Set}
	if err := client.Forget(ctx, s, c.Rank); err != nil {
		return c.failed(ctx, out, "pages forget-rank", nil, err)
	}
	if c.JSON {
		return writeJSON(out, "pages forget-rank", false, pagesForgotten{s, c.Rank})
	}
	_, err = fmt.Fprintf(out, "%s: forgot rank %d\n", spaceName(s), c.Rank)
	return err
}

// each calls do for each space that the flags select, and prints how many keys were
// affected.
func (f *pagesClientFlags) each(ctx context.Context, out io.Writer, command, done string, do func(*httpserver.Client, pageservice.SpaceState) (int64, error)) error {
	client, err := f.client()
	if err != nil {
		return err
	}
	results := []pagesRemoved{}
	chosen, err := f.chosen(ctx, client)
	if err != nil {
		return f.failed(ctx, out, command, pagesRemovals{results}, err)
	}
	for _, s := range chosen {
		n, err := do(client, s)
		if err != nil && len(results) > 0 && f.JSON && ctx.Err() == nil {
			return cmp.Or(err, writeJSON(out, command, false, pagesRemovals{results}))
		}
		if err != nil {
			return f.failed(ctx, out, command, pagesRemovals{results}, err)
		}
		results = append(results, pagesRemoved{s.Space, n})
		if !f.JSON {
			fmt.Fprintf(out, "%s: %s %s keys\n", spaceName(s.Space), done, humanize.Comma(n))
		}
	}
	if f.JSON {
		return writeJSON(out, command, false, pagesRemovals{results})
	}
	return nil
}
