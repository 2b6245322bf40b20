// Format: "GGUF", version, number of tensors, number of pairs; the pairs (key, type, value); the tensors
// (name, extents with the fastest first, type, offset); padding; the data. Offsets count from the data's
// start.
#include "engine/model/gguf_file.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/model/folder_files.h"
#include "engine/model/quantised_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <set>

namespace keyhole {
namespace {

constexpr std::uint32_t kMagic = 0x46554747, kOldestVersion = 2, kNewestVersion = 3;
constexpr std::uint64_t kMostPairs = 1 << 16, kMostTensors = 1 << 18;
constexpr std::uint64_t kLongestKey = (1 << 16) - 1, kLongestName = 256;
constexpr std::uint32_t kMostGgufExtents = 4;
constexpr int kDefaultAlignment = 32, kMostAlignment = 1 << 20;

/// A type that ggml can store; without a dtype it is only known by name.
struct StoredType {
    std::uint32_t number;
    std::string_view name;
    std::optional<DType> dtype = std::nullopt;
};
// clang-format off
constexpr StoredType kStoredTypes[] = {
    {0, "F32", DType::f32},
    {1, "F16", DType::f16},
#define KH_STORED_TYPE(type, Block, number, name) {number, name, DType::type},
    KH_BLOCK_TYPES(KH_STORED_TYPE)
#undef KH_STORED_TYPE
    {30, "BF16", DType::bf16},
    {9, "Q8_1"},
    {15, "Q8_K"},
    {16, "IQ2_XXS"},
    {17, "IQ2_XS"},
    {18, "IQ3_XXS"},
    {19, "IQ1_S"},
    {21, "IQ3_S"},
    {22, "IQ2_S"},
    {24, "I8"},
    {25, "I16"},
    {26, "I32"},
    {27, "I64"},
    {28, "F64"},
    {29, "IQ1_M"},
    {34, "TQ1_0"},
    {40, "NVFP4"},
};
// clang-format on

const StoredType* stored_type(std::uint32_t number) {
    const auto* found = std::find_if(std::begin(kStoredTypes), std::end(kStoredTypes),
                                     [&](const StoredType& type) { return type.number == number; });
    return found == std::end(kStoredTypes) ? nullptr : found;
}

template <class T>
T value_of(std::span<const std::byte> bytes) {
    T value;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
}

[[noreturn]] void broken_gguf(const std::filesystem::path& path, const std::string& what) {
    fail(ErrorCode::bad_file, "cannot read {}: {}; copy or download the file again", path.string(), what);
}

}  // namespace

/// Reads from front to back; every read is checked against the end of the file.
class GgufFile::Cursor {
  public:
    Cursor(const std::filesystem::path& path, std::span<const std::byte> bytes)
        : path_(path), bytes_(bytes) {}

    std::size_t at() const { return at_; }
    std::span<const std::byte> take(std::uint64_t n, const std::string& what) {
        if (n > bytes_.size() - at_)
            broken_gguf(path_, fmt::format("{} takes {} bytes at byte {} of {}: the file is cut off", what, n,
                                           at_, bytes_.size()));
        const auto taken = bytes_.subspan(at_, to_index(n));
        at_ += to_index(n);
        return taken;
    }
    template <class T>
    T number(const std::string& what) {
        return value_of<T>(take(sizeof(T), what));
    }
    /// Reads a length and that many bytes.
    std::string_view text(const std::string& what, std::uint64_t most) {
        const auto length = number<std::uint64_t>(what);
        if (length > most)
            broken_gguf(path_,
                        fmt::format("{} claims {} bytes, at most {} are possible", what, length, most));
        const auto taken = take(length, what);
        return {reinterpret_cast<const char*>(taken.data()), taken.size()};
    }

  private:
    const std::filesystem::path& path_;
    std::span<const std::byte> bytes_;
    std::size_t at_ = 0;
};

namespace {

/// Bytes of a value of each type, in the order of GgufFile::Type; 0 where the length varies.
constexpr std::array<std::size_t, 13> kValueBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr std::array<std::string_view, 13> kValueNames = {"u8",   "i8",   "u16",  "i16", "u32", "i32", "f32",
                                                          "flag", "text", "list", "u64", "i64", "f64"};

/// Returns a number of any plain type; `kind` is its place in the order of GgufFile::Type.
double number_from(std::size_t kind, std::span<const std::byte> bytes) {
    switch (kind) {
        case 0:
        case 7:
            return value_of<std::uint8_t>(bytes);
        case 1:
            return value_of<std::int8_t>(bytes);
        case 2:
            return value_of<std::uint16_t>(bytes);
        case 3:
            return value_of<std::int16_t>(bytes);
        case 4:
            return value_of<std::uint32_t>(bytes);
        case 5:
            return value_of<std::int32_t>(bytes);
        case 6:
            return value_of<float>(bytes);
        case 10:
            return static_cast<double>(value_of<std::uint64_t>(bytes));
        case 11:
            return static_cast<double>(value_of<std::int64_t>(bytes));
        default:
            return value_of<double>(bytes);
    }
}

}  // namespace

GgufFile::GgufFile(const std::filesystem::path& path) : path_(path), file_(path) {
    const std::span<const std::byte> all = file_.bytes();
    refuse_lfs_pointer(path_, all);
    Cursor cursor(path_, all);
    if (all.size() < 24)
        broken_gguf(path_, fmt::format("it has {} bytes, too few for a GGUF file", all.size()));
    if (cursor.number<std::uint32_t>("the magic number") != kMagic)
        broken_gguf(path_, "it does not begin with GGUF, so this is no GGUF file");
    const auto version = cursor.number<std::uint32_t>("the version");
    if (version != 0 && (version & 0xffff) == 0)
        fail(ErrorCode::unsupported,
             "cannot use {}: its numbers are big-endian; convert it with gguf-convert-endian of the gguf "
             "package",
             path_.string());
    if (version < kOldestVersion || version > kNewestVersion)
        fail(ErrorCode::unsupported,
             "cannot use {}: it is GGUF version {}, and this build reads versions {} and {}; convert the "
             "model again",
             path_.string(), version, kOldestVersion, kNewestVersion);
    const auto n_tensors = cursor.number<std::uint64_t>("the number of tensors");
    const auto n_pairs = cursor.number<std::uint64_t>("the number of keys");
    if (n_tensors > kMostTensors || n_pairs > kMostPairs)
        broken_gguf(path_, fmt::format("it claims {} tensors and {} keys, at most {} and {} are possible",
                                       n_tensors, n_pairs, kMostTensors, kMostPairs));
    for (std::uint64_t i = 0; i < n_pairs; ++i) {
        const std::string key(cursor.text(fmt::format("the name of key {}", i), kLongestKey));
        const Value value = read_value(cursor, key);
        if (!values_.emplace(key, value).second)
            broken_gguf(path_, fmt::format("the key {} occurs twice", shown_text(key)));
    }
    for (std::uint64_t i = 0; i < n_tensors; ++i) read_tensor(cursor);
    header_size_ = cursor.at();
    place_tensors();
}

GgufFile::Value GgufFile::read_value(Cursor& cursor, const std::string& key) const {
    const std::string what = fmt::format("the value of {}", shown_text(key));
    const auto type_at = [&](const std::string& of) {
        const auto type = cursor.number<std::uint32_t>(of);
        if (type >= kValueBytes.size())
            broken_gguf(path_, fmt::format("{} has the unknown type {}", of, type));
        return static_cast<Type>(type);
    };
    Value value;
    value.type = value.of = type_at(what);
    if (value.type == Type::list) {
        value.of = type_at(fmt::format("the list {}", shown_text(key)));
        if (value.of == Type::list)
            broken_gguf(path_, fmt::format("the list {} holds lists", shown_text(key)));
        value.n = cursor.number<std::uint64_t>(what);
    }
    const std::size_t size = kValueBytes[to_index(value.of)];
    if (value.of != Type::text) {
        std::uint64_t n_bytes = 0;
        if (__builtin_mul_overflow(value.n, size, &n_bytes))
            broken_gguf(path_, fmt::format("the list {} claims {} elements", shown_text(key), value.n));
        value.bytes = cursor.take(n_bytes, what);
        if (value.of == Type::flag)
            for (const std::byte one : value.bytes)
                if (std::to_integer<int>(one) > 1)
                    broken_gguf(path_, fmt::format("{} is neither true nor false", what));
        return value;
    }
    const std::size_t begin = cursor.at();
    for (std::uint64_t i = 0; i < value.n; ++i) cursor.text(what, kMostTextBytes);
    value.bytes = file_.bytes().subspan(begin, cursor.at() - begin);
    return value;
}

void GgufFile::read_tensor(Cursor& cursor) {
    const std::string name(cursor.text(fmt::format("the name of tensor {}", tensors_.size()), kLongestName));
    const std::string label = fmt::format("tensor {}", shown_text(name));
    const auto n_extents = cursor.number<std::uint32_t>(label);
    if (n_extents < 1 || n_extents > kMostGgufExtents)
        broken_gguf(path_, fmt::format("{} has {} extents, 1 to {} are possible", label, n_extents,
                                       kMostGgufExtents));
    Entry entry;
    std::uint64_t n = 1;
    for (std::uint32_t i = 0; i < n_extents; ++i) {
        const auto extent = cursor.number<std::uint64_t>(label);
        if (extent == 0 || extent > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) ||
            __builtin_mul_overflow(n, extent, &n))
            broken_gguf(path_, fmt::format("{} has an impossible shape", label));
        entry.shape.insert(entry.shape.begin(), static_cast<std::int64_t>(extent));
    }
    entry.type = cursor.number<std::uint32_t>(label);
    const auto offset = cursor.number<std::uint64_t>(label);
    entry.begin = entry.end = to_index(offset);
    const StoredType* type = stored_type(entry.type);
    if (type != nullptr && type->dtype) {
        const auto in_block = static_cast<std::uint64_t>(block_elements(*type->dtype));
        if (static_cast<std::uint64_t>(entry.shape.back()) % in_block != 0)
            broken_gguf(path_, fmt::format("{} has rows of {} elements, {} comes in blocks of {}", label,
                                           entry.shape.back(), type->name, in_block));
        std::uint64_t n_bytes = 0;
        if (__builtin_mul_overflow(n / in_block, block_bytes(*type->dtype), &n_bytes) ||
            __builtin_add_overflow(offset, n_bytes, &entry.end))
            broken_gguf(path_, fmt::format("{} has an impossible shape", label));
    }
    if (!tensors_.emplace(name, std::move(entry)).second)
        broken_gguf(path_, fmt::format("{} occurs twice", label));
}

/// Moves the tensors' offsets behind the header, and checks them.
void GgufFile::place_tensors() {
    const auto alignment = to_index(count_or("general.alignment", kDefaultAlignment, kMostAlignment));
    if (alignment % 8 != 0 || (alignment & (alignment - 1)) != 0)
        wrong("general.alignment", "a power of two from 8 on");
    const std::size_t data_begin = (header_size_ + alignment - 1) / alignment * alignment;
    const std::size_t size = file_.bytes().size(), data_size = size - std::min(data_begin, size);
    std::vector<std::map<std::string, Entry>::const_iterator> order;
    for (auto it = tensors_.begin(); it != tensors_.end(); ++it) {
        Entry& entry = it->second;
        const std::string label = fmt::format("tensor {}", shown_text(it->first));
        if (entry.begin % alignment != 0)
            broken_gguf(path_, fmt::format("{} begins at byte {} of the data, which is no multiple of {}",
                                           label, entry.begin, alignment));
        if (entry.end > data_size)
            broken_gguf(path_,
                        fmt::format("{} ends at byte {} of the data but there are {}: the file is cut off",
                                    label, entry.end, data_size));
        entry.begin += data_begin;
        entry.end += data_begin;
        if (entry.begin < entry.end) order.push_back(it);
    }
    std::sort(order.begin(), order.end(),
              [](const auto& a, const auto& b) { return a->second.begin < b->second.begin; });
    for (std::size_t i = 1; i < order.size(); ++i)
        if (order[i]->second.begin < order[i - 1]->second.end)
            broken_gguf(path_, fmt::format("tensors {} and {} overlap", shown_text(order[i - 1]->first),
                                           shown_text(order[i]->first)));
}

std::string GgufFile::shown(const Value& value) const {
    if (value.type == Type::list)
        return fmt::format("a list of {} elements of type {}", value.n, kValueNames[to_index(value.of)]);
    if (value.type == Type::flag) return value_of<std::uint8_t>(value.bytes) != 0 ? "true" : "false";
    if (value.type != Type::text) return fmt::format("{:g}", number_from(to_index(value.type), value.bytes));
    return fmt::format("the text {}", shown_text({reinterpret_cast<const char*>(value.bytes.data()) + 8,
                                                  value.bytes.size() - 8}));
}

void GgufFile::wrong(const std::string& key, const std::string& wanted) const {
    const Value* value = find(key);
    fail(ErrorCode::bad_file, "cannot use {}: {} is {}, wanted {}; convert the model again", path_.string(),
         key, value == nullptr ? "absent" : shown(*value), wanted);
}

const GgufFile::Value* GgufFile::find(const std::string& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second;
}

std::vector<std::string> GgufFile::keys() const {
    std::vector<std::string> keys;
    for (const auto& [key, value] : values_) keys.push_back(key);
    return keys;
}

std::string GgufFile::text(const std::string& key) const {
    const Value* value = find(key);
    if (value == nullptr || value->type != Type::text) wrong(key, "a text");
    return {reinterpret_cast<const char*>(value->bytes.data()) + 8, value->bytes.size() - 8};
}

std::string GgufFile::text_or(const std::string& key, const std::string& fallback) const {
    return has(key) ? text(key) : fallback;
}

bool GgufFile::flag_or(const std::string& key, bool fallback) const {
    const Value* value = find(key);
    if (value == nullptr) return fallback;
    if (value->type != Type::flag) wrong(key, "true or false");
    return value_of<std::uint8_t>(value->bytes) != 0;
}

int GgufFile::whole_number(const std::string& key, int least, int most) const {
    const Value* value = find(key);
    const std::string wanted = fmt::format("a whole number from {} to {}", least, most);
    if (value == nullptr || value->n == 0) wrong(key, wanted);
    if (value->of == Type::text || value->of == Type::flag || value->of == Type::f32 ||
        value->of == Type::f64)
        wrong(key, wanted);
    const std::size_t kind = to_index(value->of), size = kValueBytes[kind];
    const double first = number_from(kind, value->bytes);
    if (first < least || first > most) wrong(key, wanted);
    for (std::uint64_t i = 1; i < value->n; ++i)
        if (number_from(kind, value->bytes.subspan(to_index(i) * size)) != first)
            fail(ErrorCode::unsupported,
                 "cannot load {}: {} differs between layers, which is not supported; choose another model",
                 path_.string(), key);
    return static_cast<int>(first);
}

int GgufFile::count_or(const std::string& key, int fallback, int most) const {
    return has(key) ? whole_number(key, 1, most) : fallback;
}

int GgufFile::count_or_zero(const std::string& key, int fallback, int most) const {
    return has(key) ? whole_number(key, 0, most) : fallback;
}

double GgufFile::number_or(const std::string& key, double fallback) const {
    const Value* value = find(key);
    if (value == nullptr) return fallback;
    if (value->type == Type::text || value->type == Type::flag || value->type == Type::list)
        wrong(key, "a number");
    const double number = number_from(to_index(value->type), value->bytes);
    if (!std::isfinite(number)) wrong(key, "a finite number");
    return number;
}

double GgufFile::positive_or(const std::string& key, double fallback) const {
    const double number = number_or(key, fallback);
    if (has(key) && (!(number > 0) || number > std::numeric_limits<float>::max()))
        wrong(key, "a positive number");
    return number;
}

std::vector<std::string_view> GgufFile::texts(const std::string& key) const {
    const Value* value = find(key);
    std::vector<std::string_view> texts;
    if (value == nullptr) return texts;
    if (value->type != Type::list || value->of != Type::text) wrong(key, "a list of texts");
    Cursor cursor(path_, value->bytes);
    texts.reserve(to_index(value->n));
    for (std::uint64_t i = 0; i < value->n; ++i) texts.push_back(cursor.text(key, kMostTextBytes));
    return texts;
}

const GgufFile::Value* GgufFile::number_list(const std::string& key) const {
    const Value* value = find(key);
    if (value != nullptr && (value->type != Type::list || value->of == Type::text || value->of == Type::flag))
        wrong(key, "a list of numbers");
    return value;
}

std::vector<float> GgufFile::numbers(const std::string& key) const {
    const Value* value = number_list(key);
    std::vector<float> numbers;
    for (std::uint64_t i = 0; value != nullptr && i < value->n; ++i) {
        const std::size_t kind = to_index(value->of);
        numbers.push_back(
            static_cast<float>(number_from(kind, value->bytes.subspan(to_index(i) * kValueBytes[kind]))));
    }
    return numbers;
}

std::vector<std::int32_t> GgufFile::integers(const std::string& key) const {
    const Value* value = number_list(key);
    std::vector<std::int32_t> integers;
    for (std::uint64_t i = 0; value != nullptr && i < value->n; ++i) {
        const std::size_t kind = to_index(value->of);
        const double number = number_from(kind, value->bytes.subspan(to_index(i) * kValueBytes[kind]));
        if (number != std::floor(number) || std::abs(number) > std::numeric_limits<std::int32_t>::max())
            wrong(key, "a list of whole numbers");
        integers.push_back(static_cast<std::int32_t>(number));
    }
    return integers;
}

std::vector<std::int32_t> GgufFile::flags_or_number(const std::string& key) const {
    const Value* value = find(key);
    if (value == nullptr) return {};
    if (value->type != Type::list || value->of != Type::flag)
        return {whole_number(key, 0, std::numeric_limits<std::int32_t>::max())};
    std::vector<std::int32_t> flags;
    for (std::uint64_t i = 0; i < value->n; ++i)
        flags.push_back(value_of<std::uint8_t>(value->bytes.subspan(to_index(i), 1)) != 0 ? 1 : 0);
    return flags;
}

StoredTensor GgufFile::tensor(const std::string& name) const {
    const auto found = tensors_.find(name);
    for (const GgufFile& part : parts_)
        if (found == tensors_.end() && part.tensors_.count(name) != 0) return part.tensor(name);
    if (found == tensors_.end())
        fail(ErrorCode::bad_file,
             "cannot find tensor {} in {}; the file holds {} others: is it a whole model?", name,
             path_.string(), names().size());
    const Entry& entry = found->second;
    const StoredType* type = stored_type(entry.type);
    if (type == nullptr || !type->dtype) {
        std::string supported;
        for (const StoredType& one : kStoredTypes)
            if (one.dtype) supported += fmt::format("{}{}", supported.empty() ? "" : ", ", one.name);
        fail(ErrorCode::unsupported, "cannot use tensor {} in {}: its type is {}, and this build reads {}",
             shown_text(name), path_.string(),
             type == nullptr ? fmt::format("number {}", entry.type) : std::string(type->name), supported);
    }
    return {*type->dtype, entry.shape, file_.bytes().data() + entry.begin};
}

std::vector<std::string> GgufFile::names() const {
    std::vector<std::string> names;
    names.reserve(tensors_.size());
    for (const auto& [name, entry] : tensors_) names.push_back(name);
    for (const GgufFile& part : parts_)
        for (const auto& [name, entry] : part.tensors_) names.push_back(name);
    std::sort(names.begin(), names.end());
    return names;
}

bool GgufFile::contains(const std::string& name) const {
    return tensors_.count(name) != 0 || std::any_of(parts_.begin(), parts_.end(), [&](const GgufFile& part) {
               return part.tensors_.count(name) != 0;
           });
}

void GgufFile::open_parts() {
    constexpr int kMostParts = 99999;
    const int n = count_or_zero("split.count", 0, kMostParts);
    if (n < 2) return;
    const int number = count_or_zero("split.no", 0, kMostParts) + 1;
    const std::string name = path_.filename().string();
    const std::string ending = fmt::format("-{:05d}-of-{:05d}.gguf", number, n);
    if (!name.ends_with(ending))
        fail(ErrorCode::bad_file,
             "cannot load {}: it is part {} of {} of a model, whose name ends with {}; give the parts their "
             "names again",
             path_.string(), number, n, ending);
    const std::string stem = name.substr(0, name.size() - ending.size());
    const auto path_of = [&](int part) {
        return path_.parent_path() / fmt::format("{}-{:05d}-of-{:05d}.gguf", stem, part, n);
    };
    if (number != 1)
        fail(ErrorCode::wrong_use, "cannot load {}: it is part {} of {} of a model; name the first, {}",
             path_.string(), number, n, path_of(1).string());
    const auto same = [](const Value& a, const Value& b) {
        return a.type == b.type && a.of == b.of &&
               std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), b.bytes.end());
    };
    std::set<std::string> known;
    for (const auto& [tensor, entry] : tensors_) known.insert(tensor);
    for (int part = 2; part <= n; ++part) {
        const std::filesystem::path path = path_of(part);
        if (!is_there(path))
            fail(ErrorCode::bad_file, "cannot find {}, part {} of {} of the model; copy or download it",
                 path.string(), part, n);
        const GgufFile& next = parts_.emplace_back(path);
        if (next.count_or_zero("split.count", 0, kMostParts) != n ||
            next.count_or_zero("split.no", 0, kMostParts) + 1 != part)
            fail(ErrorCode::bad_file,
                 "cannot use {}: it says that it is another part than {} of {}; copy or download it again",
                 path.string(), part, n);
        // Parts of two models may have the same names and numbers: what both say must be the same.
        for (const auto& [key, value] : next.values_)
            if (const Value* first = find(key); key != "split.no" && first != nullptr && !same(*first, value))
                fail(ErrorCode::bad_file,
                     "cannot use {}: it is a part of another model than {}, its {} is {} and not {}; copy or "
                     "download the parts of one model",
                     path.string(), path_.string(), shown_text(key), next.shown(value), shown(*first));
        for (const auto& [tensor, entry] : next.tensors_)
            if (!known.insert(tensor).second)
                fail(ErrorCode::bad_file,
                     "cannot use {}: its tensor {} is in an earlier part too; copy or download it again",
                     path.string(), shown_text(tensor));
    }
    const int n_tensors = count_or("split.tensors.count", static_cast<int>(known.size()), 1 << 24);
    if (n_tensors != static_cast<int>(known.size()))
        fail(ErrorCode::bad_file,
             "cannot use {}: its {} parts hold {} tensors, and it names {}; copy or download them again",
             path_.string(), n, known.size(), n_tensors);
}

bool is_gguf(const std::filesystem::path& path) {
    if (path.extension() == ".gguf") return true;
    check_ordinary_file(path);
    std::array<char, 4> begin{};
    std::ifstream(path, std::ios::binary).read(begin.data(), begin.size());
    std::uint32_t magic = 0;
    std::memcpy(&magic, begin.data(), sizeof magic);
    return magic == kMagic;
}

}  // namespace keyhole
