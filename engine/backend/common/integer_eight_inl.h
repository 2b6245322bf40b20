// Registers of eight rows, for integer_products.cpp, which includes this file once for each path. No guard,
// since it is included several times.
struct Eight {
    static constexpr int kLanes = 8;
    using Ints = __m256i;
    using Floats = __m256;
    static Ints load(const std::uint8_t* p) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    }
    static Ints and_all(Ints a, int byte) {
        return _mm256_and_si256(a, _mm256_set1_epi8(static_cast<char>(byte)));
    }
    static Ints either(Ints a, Ints b) { return _mm256_or_si256(a, b); }
    template <int kLeft>
    static Ints shift(Ints a) {
        if constexpr (kLeft > 0) return _mm256_slli_epi16(a, kLeft);
        if constexpr (kLeft < 0) return _mm256_srli_epi16(a, -kLeft);
        return a;
    }
    static Ints look_up(const std::int8_t* values, int zero, Ints codes) {
        const __m128i table = _mm_add_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)),
                                           _mm_set1_epi8(static_cast<char>(zero)));
        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes);
    }
    template <int i>
    static Floats code_floats(Ints codes) {
        if constexpr (i > 0) codes = _mm256_srli_epi32(codes, 8 * i);
        if constexpr (i < 3) codes = _mm256_and_si256(codes, _mm256_set1_epi32(255));
        return _mm256_cvtepi32_ps(codes);
    }
    static Floats magnitude(Floats a) {
        return _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)));
    }
    static Floats all(float value) { return _mm256_set1_ps(value); }
    static Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
    static Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
    static Floats mul_add(Floats a, Floats b, Floats sum) { return _mm256_fmadd_ps(a, b, sum); }
    static Floats load_halves(const std::byte* p) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    static Floats load_exponents(const std::byte* p) {
        const __m256i d = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
        const __m256i usual = _mm256_slli_epi32(_mm256_sub_epi32(d, _mm256_set1_epi32(1)), 23);
        const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), d);
        return _mm256_castsi256_ps(
            _mm256_blendv_epi8(usual, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), d)));
    }
    static Floats load_steps(const std::byte* p) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
    }
    static void store(Floats v, int n, float* p) {
        if (n == kLanes) return _mm256_storeu_ps(p, v);
        alignas(32) float each[kLanes];
        _mm256_store_ps(each, v);
        std::memcpy(p, each, static_cast<std::size_t>(n) * sizeof(float));
    }

    // Inputs are narrowed so on all these processors.
    static std::uint32_t largest_bits(const float* x) {
        const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
        __m256i most = _mm256_setzero_si256();
        for (int i = 0; i < kCellColumns; i += 8)
            most = _mm256_max_epi32(most,
                                    _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + i)), magnitude));
        __m128i four = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
        four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
        return static_cast<std::uint32_t>(_mm_cvtsi128_si32(four));
    }
    static void round_all(const float* x, float inverse, std::int16_t* upper, std::int16_t* lower) {
        const __m256 factor = _mm256_set1_ps(inverse);
        for (int i = 0; i < kCellColumns; i += 16) {
            const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), factor));
            const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8), factor));
            const __m256i low_a = _mm256_srai_epi32(_mm256_slli_epi32(a, 24), 24);
            const __m256i low_b = _mm256_srai_epi32(_mm256_slli_epi32(b, 24), 24);
            store_halves(low_a, low_b, lower + i);
            store_halves(_mm256_srai_epi32(_mm256_sub_epi32(a, low_a), 8),
                         _mm256_srai_epi32(_mm256_sub_epi32(b, low_b), 8), upper + i);
        }
    }
    static void store_halves(__m256i a, __m256i b, std::int16_t* to) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(to),
                           _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8));
    }
    static std::int32_t sum_of_16(const std::int16_t* q) {
        const __m256i pairs =
            _mm256_madd_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(q)), _mm256_set1_epi16(1));
        __m128i four = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
        return _mm_cvtsi128_si32(four);
    }

    // Numbers as signed bytes: u is 256 upper[0] + upper[1].
    static void pack_bytes(const std::int16_t* upper, const std::int16_t* lower, NarrowBlock& to) {
        const __m256i half = _mm256_set1_epi16(128), low = _mm256_set1_epi16(255);
        const __m256i a = _mm256_load_si256(reinterpret_cast<const __m256i*>(upper));
        const __m256i b = _mm256_load_si256(reinterpret_cast<const __m256i*>(upper + 16));
        store_bytes(_mm256_packs_epi16(_mm256_srai_epi16(_mm256_add_epi16(a, half), 8),
                                       _mm256_srai_epi16(_mm256_add_epi16(b, half), 8)),
                    to.upper[0]);
        store_bytes(_mm256_packus_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low)), to.upper[1]);
        store_bytes(_mm256_packs_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(lower)),
                                       _mm256_load_si256(reinterpret_cast<const __m256i*>(lower + 16))),
                    to.lower[0]);
    }
    static void store_bytes(__m256i bytes, std::int32_t (&to)[8]) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(bytes, 0xd8));
    }

    // The sum of numbers of 24 bits from those of u and l. 256 times a float is exact, so fused or not.
    static Floats joined(Ints upper, Ints lower) {
        return _mm256_fmadd_ps(_mm256_cvtepi32_ps(upper), _mm256_set1_ps(256.0f), _mm256_cvtepi32_ps(lower));
    }
};
