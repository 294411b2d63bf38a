package lmcache

// DTypes returns the words for element types in the names of files.
func DTypes() []string {
	return []string{
		"half", "bfloat16", "float", "double", "int8", "uint8", "int16", "int32", "int64", "bool",
		"fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2", "fp8_e5m2fnuz",
	}
}

// isDType reports whether a word is one of DTypes.
func isDType(word string) bool {
	switch word {
	case "half", "bfloat16", "float", "double", "int8", "uint8", "int16", "int32", "int64", "bool",
		"fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2", "fp8_e5m2fnuz":
		return true
	}
	return false
}

// WordOf returns the word for a type as torch or vLLM names it, and whether there is one.
func WordOf(dtype string) (string, bool) {
	switch dtype {
	case "half", "float16", "fp16":
		return "half", true
	case "bfloat16", "bf16":
		return "bfloat16", true
	case "float", "float32", "fp32":
		return "float", true
	case "double", "float64":
		return "double", true
	case "fp8", "fp8_e4m3", "fp8_e4m3fn", "float8_e4m3fn":
		return "fp8_e4m3fn", true
	case "fp8_e5m2", "float8_e5m2":
		return "fp8_e5m2", true
	case "fp8_e4m3fnuz", "float8_e4m3fnuz":
		return "fp8_e4m3fnuz", true
	case "fp8_e5m2fnuz", "float8_e5m2fnuz":
		return "fp8_e5m2fnuz", true
	case "int8", "uint8", "int16", "int32", "int64", "bool":
		return dtype, true
	}
	return "", false
}

// DTypeCode is the number of an element type in a header.
type DTypeCode int

// LMCache's codes. It writes DTypeHalf for 16-bit floats, and reads DTypeOldHalf, too.
const (
	DTypeNone DTypeCode = iota
	DTypeOldHalf
	DTypeHalf
	DTypeBFloat16
	DTypeFloat
	DTypeDouble
	DTypeUint8
	DTypeFP8E4M3FN
	DTypeFP8E5M2
)

// CodeOf returns the code of a word, and whether it has one.
func CodeOf(word string) (DTypeCode, bool) {
	switch word {
	case "half":
		return DTypeHalf, true
	case "bfloat16":
		return DTypeBFloat16, true
	case "float":
		return DTypeFloat, true
	case "double":
		return DTypeDouble, true
	case "uint8":
		return DTypeUint8, true
	case "fp8_e4m3fn":
		return DTypeFP8E4M3FN, true
	case "fp8_e5m2":
		return DTypeFP8E5M2, true
	}
	return DTypeNone, false
}

// Bytes returns how large an element is, 0 for a code that is none.
func (c DTypeCode) Bytes() int {
	switch c {
	case DTypeOldHalf, DTypeHalf, DTypeBFloat16:
		return 2
	case DTypeFloat:
		return 4
	case DTypeDouble:
		return 8
	case DTypeUint8, DTypeFP8E4M3FN, DTypeFP8E5M2:
		return 1
	}
	return 0
}

func (c DTypeCode) canonical() DTypeCode {
	if c == DTypeOldHalf {
		return DTypeHalf
	}
	return c
}
