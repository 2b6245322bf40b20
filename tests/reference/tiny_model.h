/// Seeded LLaMA folders for tests, written into a temporary directory that is removed with the object.
/// Byte-level tokenizer: token b is byte b, then bos (256) and eos (257).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace reference {

enum class StoredAs { f32, f16, bf16 };

struct TinyShape {
    int n_layers = 2;
    int n_heads = 4;
    int n_kv_heads = 2;
    int n_kv_layers = 0;  ///< layers with their own K and V: int(i * n_layers / n_kv_layers); 0: all
    int head_dim = 8;
    int d_ff = 48;
    int n_ctx = 512;
    StoredAs dtype = StoredAs::f32;
    bool tied = false;
    /// Standard deviation of the projections is spread / sqrt(columns). At 1.7 attention logits have a
    /// deviation of about 3, so that attention is not flat.
    double spread = 1.7;
    double rope_theta = 10000;
    std::uint64_t seed = 1;
    int n_vocab = 258;  ///< rows of embedding and output; the tokenizer has the first 258
    int eos = 257;      ///< end token in config.json
};

inline constexpr int kBos = 256;
inline constexpr int kEos = 257;

class TinyModel {
  public:
    explicit TinyModel(const TinyShape& shape);
    ~TinyModel();
    TinyModel(const TinyModel&) = delete;
    TinyModel& operator=(const TinyModel&) = delete;

    const std::filesystem::path& folder() const { return folder_; }
    const TinyShape& shape() const { return shape_; }

  private:
    TinyShape shape_;
    std::filesystem::path folder_;
};

/// Sets the first element of a tensor in the folder to NaN (f32 only).
void put_nan(const std::filesystem::path& folder, const std::string& tensor);

/// Multiplies rows [first_row, first_row + n_rows) of a matrix in the folder by a power of two (f32, bf16).
void scale_rows(const std::filesystem::path& folder, const std::string& tensor, double factor, int first_row,
                int n_rows);

/// Returns seeded lower-case words of n bytes; with bos they are n + 1 tokens.
std::string random_text(int n_bytes, std::uint64_t seed);
/// Returns bos and the bytes of random_text(n_tokens - 1, seed).
std::vector<int> random_tokens(int n_tokens, std::uint64_t seed);

}  // namespace reference
