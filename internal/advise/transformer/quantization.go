package transformer

import (
	"maps"
	"slices"
	"strings"
)

// Sizes of quantized parameters with their scales.
const (
	int4Bytes  = 0.5 * 1.0625 // a 16-bit scale and a 4-bit zero point for each 64 to 128
	mxfp4Bytes = 0.5 * 1.0625 // an 8-bit scale for each 32
)

// quantized returns the size of a parameter of layers, and of experts, by the weights'
// type.
func (c *config) quantized() (shared, routed float64) {
	if !c.has("quantization_config") {
		return 2, 2 // engines load 32-bit weights as 16-bit ones
	}
	q := c.object("quantization_config")
	bits := max(q.measure("bits"), q.measure("w_bit"), q.groupBits())
	name := strings.ToLower(strings.TrimSpace(q.text("quant_method") + " " + q.text("quant_algo")))
	in4, in8 := q.truth("load_in_4bit", false), q.truth("load_in_8bit", false)
	c.err = q.err
	switch {
	case bits == 4:
		return int4Bytes, int4Bytes
	case bits > 0 && bits <= 16:
		return bits / 8, bits / 8
	case bits != 0:
		c.fail("quantization_config: %g bits are no size of a weight", bits)
	case strings.Contains(name, "mxfp4"): // of experts only
		return 2, mxfp4Bytes
	case strings.Contains(name, "fp4") || in4:
		return int4Bytes, int4Bytes
	case strings.Contains(name, "fp8") || strings.Contains(name, "int8") || strings.Contains(name, "w8a8") || in8:
		return 1, 1
	case name == "":
		c.note("quantization_config names no quant_method; weights count as 16-bit ones")
	default:
		c.note("the size of weights in %.40q is not known; they count as 16-bit ones", name)
	}
	return 2, 2
}

// groupBits returns the most bits of a group of weights, in the form of
// compressed-tensors, 0 if there is none.
func (c *config) groupBits() (bits float64) {
	groups := c.object("config_groups")
	for _, key := range slices.Sorted(maps.Keys(groups.fields)) {
		group := groups.object(key)
		weights := group.object("weights")
		bits = max(bits, weights.measure("num_bits"))
		groups.err = weights.err
	}
	c.err = groups.err
	return bits
}
