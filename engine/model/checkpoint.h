/// The weights of a model by their names in a Hugging Face folder, over one file, many shards, or a GGUF
/// file. Knows no model family. One thread fills it while loading; afterwards it only keeps the mappings that
/// weights point into.
#pragma once

#include "engine/base/reserved_pages.h"
#include "engine/model/gguf_file.h"
#include "engine/model/model.h"
#include "engine/model/safetensors.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// Selects rows of a matrix: n blocks of `rows` rows each; block i begins at row first + i * stride.
struct RowBlocks {
    std::int64_t first = 0;
    std::int64_t rows = 0;
    std::int64_t stride = 0;
    std::int64_t n = 1;
};

/// The tensor of a GGUF file that is no weight: it divides rotary frequencies.
inline constexpr const char* kGgufFactors = "rope_freqs.weight";
/// The same for longrope, of texts beyond the original context and within it.
inline constexpr const char* kGgufLongFactors = "rope_factors_long.weight";
inline constexpr const char* kGgufShortFactors = "rope_factors_short.weight";

/// Where a weight lies in a GGUF file, and how it is arranged there.
struct GgufPlace {
    std::string tensor;  ///< its name in the file
    /// Where the tensor holds more, such as q, k and v: the first row of this, and the rows of all; -1: all
    std::int64_t first_row = -1, all_rows = 0;
    /// Not 0: the rows of a head of this many are in the order 0, n / 2, 1, n / 2 + 1, ...
    int paired_head_dim = 0;
    bool is_transposed = false;  ///< a folder stores the transpose
};

class Checkpoint {
  public:
    /// Opens model.safetensors, or else the shards that model.safetensors.index.json lists. A tensor counts
    /// where it lies, whatever the index says; a note names what the index has wrong. Throws Error(bad_file)
    /// with the missing file.
    explicit Checkpoint(const std::filesystem::path& folder);
    /// places: by the names that a folder would have; the file may lack some of them.
    Checkpoint(GgufFile file, std::map<std::string, GgufPlace> places);

    bool contains(const std::string& name) const;
    /// Returns whether this is a GGUF file that keeps such a tensor, here or missing.
    bool has_place(const std::string& name) const { return place_of(name) != nullptr; }
    std::vector<std::string> names() const;  ///< of a folder's tensors, ascending
    /// As SafetensorsFile::tensor(). The tensor must be contained, in a folder.
    StoredTensor stored(const std::string& name) const { return shards_[shard_of_.at(name)].tensor(name); }
    /// Throws Error(unsupported) with the name of a tensor that no weight was taken from, though the model
    /// reads its like: any tensor of a GGUF file, kGgufFactors aside, and of a folder one of the model's
    /// layers. Buffers that transformers computes itself are none. Other tensors, such as those of a head
    /// for another task, get a note.
    void refuse_unread();
    /// Returns a matrix [rows, cols], or a vector [rows] when cols is 0. Throws Error(bad_file) with tensor
    /// and file when it is missing or has another shape, Error(unsupported) for another type. The weight
    /// points into the mapping, except where the file stores it unaligned or in another order: then it points
    /// to where make_copies() puts a copy.
    Weight weight(const std::string& name, std::int64_t rows, std::int64_t cols = 0);

    /// Returns some rows of a matrix [rows, cols] or of a vector (cols 0), block after block. One block
    /// points into the mapping; several into a copy. Throws as weight().
    Weight blocks(const std::string& name, std::int64_t rows, std::int64_t cols, const RowBlocks& which);

    /// Returns matrix `which` of the n that lie in one tensor [n, rows, cols], or a vector of [n, rows] when
    /// cols is 0. Throws as weight().
    Weight one_of(const std::string& name, int which, int n, std::int64_t rows, std::int64_t cols);

    /// Returns rows of expert `which` of the n whose matrices [rows, cols] lie in one tensor of a folder, as
    /// gpt-oss stores them: NAME [n, cols, rows], or in MXFP4 NAME_blocks [n, rows, cols / 32, 16] and
    /// NAME_scales [n, rows, cols / 32]. As a copy. Throws as weight().
    Weight expert_rows(const std::string& name, int which, int n, std::int64_t cols, const RowBlocks& rows);
    /// Returns some rows of a weight as a copy.
    Weight copied_rows(const std::string& name, const Weight& from, const RowBlocks& which);

    /// Returns rows [first, first + n) of the transpose of a matrix stored as [cols, rows], as a copy.
    /// Throws as weight().
    Weight transposed(const std::string& name, std::int64_t rows, std::int64_t cols, std::int64_t first,
                      std::int64_t n);

    /// Returns the bytes of all copies. They are known from the shapes, so that a model can be described, or
    /// refused, without taking the memory.
    std::int64_t copied_bytes() const;
    /// Makes the copies. Until then the data of their weights must not be read. Throws Error(no_memory) with
    /// the file and what it takes, or with a tensor.
    void make_copies(const std::function<void(double)>& progress = {});

    /// Returns a line for every requested tensor that holds NaN or infinity. Up to 1 GiB of files every
    /// value is checked, since the first token reads them all anyway; above that, samples are.
    const std::vector<std::string>& warnings() const { return warnings_; }

    /// Notes for the user about weights that are used otherwise than the files say, one line each.
    const std::vector<std::string>& notes() const { return notes_; }
    void add_note(std::string_view line);
    /// Throws Error(bad_file): the tensor is missing. remedy: what the user can do.
    [[noreturn]] void fail_without(const std::string& name, const std::string& remedy) const;

    /// Throws Error(bad_file) with the name of a file that was truncated or written to since it was opened.
    void check_unchanged() const;

    /// Adds the files to a digest: see Model::hash.
    std::uint64_t digest(std::uint64_t seed) const;

  private:
    struct Copy {
        ReservedPages pages;
        std::function<void(std::byte* to)> fill;
    };
    /// Returns the place of a copy that fill() makes later.
    const void* copy_later(const std::string& name, std::size_t n_bytes,
                           std::function<void(std::byte*)> fill);
    void open_shards(const std::filesystem::path& index);
    void open_unlisted();
    void refuse_unread_of_folder();
    void check(const std::string& name, const Weight& weight);
    const GgufPlace* place_of(const std::string& name) const;
    /// Returns what the file holds of a weight; the shape is that of the file. Throws as weight().
    /// as_bytes: a folder's tensor of plain bytes, parts of MXFP4.
    StoredTensor found(const std::string& name, std::string& label, std::filesystem::path& file,
                       bool as_bytes = false);
    /// Throws Error(bad_file) unless the tensor has this shape.
    void check_shape(const StoredTensor& stored, const std::vector<std::int64_t>& wanted,
                     const std::string& label, const std::filesystem::path& file) const;
    /// Makes a weight of numbers that lie in a file: looks for NaN, and copies them if they are not aligned.
    Weight usable(const std::string& label, Weight weight);
    /// Returns a copy with the rows of each head in the order of a folder.
    Weight unpaired(const std::string& name, const Weight& weight, int head_dim);
    std::size_t file_bytes() const;
    std::string file_name() const;  ///< of the only file, else the folder

    std::filesystem::path folder_;
    std::vector<GgufFile> gguf_;  // one or none
    std::map<std::string, GgufPlace> places_;
    std::set<std::string> read_;
    std::vector<SafetensorsFile> shards_;
    std::map<std::string, std::size_t> shard_of_;
    std::vector<Copy> copies_;
    std::set<std::string> checked_;
    std::vector<std::string> warnings_, notes_;
};

}  // namespace keyhole
