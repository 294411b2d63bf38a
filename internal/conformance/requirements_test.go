package conformance

var requirements = map[int]check{}
