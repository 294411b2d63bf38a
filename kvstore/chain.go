package kvstore

import (
	"fmt"
	"slices"
	"strings"
)

// Names of stores in the names of chains.
const (
	cacheName   = "Cache"
	posixName   = "Posix"
	ds3fsName   = "Ds3fs"
	segmentName = "Segment"
	pagesName   = "Pages"
	lmcacheName = "LMCache"
	gdsName     = "Gds"
	rtpLlmName  = "RtpLlm"
	kvcmName    = "Kvcm"
	emptyName   = "Empty"
)

// backs are the stores that end a chain.
var backs = []string{posixName, ds3fsName, segmentName, pagesName, lmcacheName, gdsName, rtpLlmName, kvcmName, emptyName}

// Chains returns the names of all chains.
func Chains() []string { return new(Registry).Chains() }

// chainName is the name that parse reads.
func chainName(names []string) string { return strings.Join(names, "|") }

// splitChain returns the names in the name of a chain, the first in front.
func splitChain(chain string) []string {
	names := strings.Split(chain, "|")
	for i, name := range names {
		names[i] = strings.TrimSpace(name)
	}
	return names
}

// parse reads the name of a chain and returns its stores, the first in front.
func (r *Registry) parse(chain string) ([]string, error) {
	names, known := splitChain(chain), r.backs()
	for _, name := range names {
		if name != cacheName && !slices.Contains(known, name) {
			return nil, fmt.Errorf("kvstore: chain %.60q: there is no store %.40q%s; the chains are %s",
				chain, name, didYouMean(name, append([]string{cacheName}, known...)), strings.Join(r.Chains(), ", "))
		}
	}
	last := names[len(names)-1]
	if last == cacheName {
		return nil, fmt.Errorf("kvstore: chain %.60q: a cache needs a store behind it; Cache|Empty keeps blocks in memory alone", chain)
	}
	before := names[:len(names)-1]
	if len(before) > 0 && before[0] == cacheName {
		before = before[1:]
	}
	if len(before) > 0 && before[0] == segmentName && !slices.Contains([]string{segmentName, emptyName}, last) {
		before = before[1:]
	}
	if len(before) > 0 {
		return nil, fmt.Errorf("kvstore: chain %.60q: a chain is one store, or Cache, Segment or both and one store behind them; the chains are %s", chain, strings.Join(r.Chains(), ", "))
	}
	return names, nil
}

// hasNear reports whether a chain has Segment in front of another store.
func hasNear(names []string) bool {
	return len(names) > 1 && names[len(names)-2] == segmentName
}

// parseChain is parse where nothing is registered.
func parseChain(chain string) ([]string, error) { return new(Registry).parse(chain) }
