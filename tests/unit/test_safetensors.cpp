// The reader, tested on a file of the official safetensors package and on malicious files.
#include "engine/model/safetensors.h"

#include "engine/base/error.h"
#include "engine/base/half.h"
#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

namespace keyhole::test_safetensors {
namespace {

namespace fs = std::filesystem;

/// A file of header and data, removed with the object.
class RawFile {
  public:
    explicit RawFile(const std::string& bytes)
        : path_(fs::temp_directory_path() / ("keyhole-raw-" + std::to_string(getpid()) + ".safetensors")) {
        write_text_file(path_, bytes);
    }
    RawFile(const std::string& header, std::size_t n_data)
        : RawFile(length_bytes(header.size()) + header + std::string(n_data, '\1')) {}
    ~RawFile() { fs::remove(path_); }
    RawFile(const RawFile&) = delete;
    RawFile& operator=(const RawFile&) = delete;

    static std::string length_bytes(std::uint64_t length) {
        std::string bytes(8, '\0');
        for (char& c : bytes) {
            c = static_cast<char>(length & 0xff);
            length >>= 8;
        }
        return bytes;
    }
    const fs::path& path() const { return path_; }

  private:
    fs::path path_;
};

void expect_refused(const RawFile& file, const std::string& part, ErrorCode code = ErrorCode::bad_file) {
    try {
        SafetensorsFile opened(file.path());
        ADD_FAILURE() << "accepted, expected: " << part;
    } catch (const Error& error) {
        const std::string message = error.what();
        EXPECT_EQ(error.code(), code) << message;
        EXPECT_NE(message.find(part), std::string::npos) << message << "\nexpected: " << part;
        EXPECT_NE(message.find(file.path().string()), std::string::npos) << message;
        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
}

float value_at(const StoredTensor& tensor, std::size_t i) {
    if (tensor.dtype == DType::f32) {
        float value = 0;
        std::memcpy(&value, tensor.data + 4 * i, 4);
        return value;
    }
    std::uint16_t bits = 0;
    std::memcpy(&bits, tensor.data + 2 * i, 2);
    return tensor.dtype == DType::f16 ? float_from_fp16(bits) : float_from_bf16(bits);
}

TEST(Safetensors, ReadsWhatTheOfficialPackageWrote) {
    const SafetensorsFile file(reference::source_folder() / "tests/fixtures/types.safetensors");
    EXPECT_EQ(file.names().size(), 10u);
    const float inf = std::numeric_limits<float>::infinity();
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)));
        const StoredTensor values = file.tensor(std::string(dtype_name(dtype)) + ".values");
        EXPECT_EQ(values.dtype, dtype);
        EXPECT_EQ(values.shape, (std::vector<std::int64_t>{2, 3, 4}));
        for (std::size_t i = 0; i < 24; ++i) {
            EXPECT_EQ(value_at(values, i), (static_cast<float>(i) - 12.0f) * 0.375f) << i;
        }
        const StoredTensor special = file.tensor(std::string(dtype_name(dtype)) + ".special");
        const float largest = dtype == DType::bf16 ? 65536.0f : 65504.0f;
        const float expected[] = {0.0f, -0.0f, 1.0f, -2.0f, largest, 0x1p-24f, inf, -inf};
        for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(value_at(special, i), expected[i]) << i;
        EXPECT_TRUE(std::signbit(value_at(special, 1)));
        EXPECT_TRUE(std::isnan(value_at(special, 8)));
    }
    EXPECT_EQ(file.tensor("scalar").shape.size(), 0u);
    EXPECT_EQ(value_at(file.tensor("scalar"), 0), 2.5f);
    EXPECT_EQ(file.tensor("empty").shape, (std::vector<std::int64_t>{0, 3}));
}

TEST(Safetensors, OtherTypesAreListedAndRefusedWhenAskedFor) {
    const SafetensorsFile file(reference::source_folder() / "tests/fixtures/types.safetensors");
    for (const auto& [name, type] : {std::pair("ids", "I64"), std::pair("mask", "BOOL")}) {
        ASSERT_TRUE(file.contains(name));
        try {
            file.tensor(name);
            ADD_FAILURE() << name;
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::unsupported);
            EXPECT_NE(std::string(error.what()).find(type), std::string::npos) << error.what();
        }
    }
    EXPECT_FALSE(file.contains("nothing"));
    EXPECT_THROW(file.tensor("nothing"), Error);
}

TEST(Safetensors, EveryCutIsNoticed) {
    const std::string whole = read_text_file(reference::source_folder() / "tests/fixtures/types.safetensors");
    for (std::size_t size = 0; size < whole.size(); ++size) {
        const RawFile file(whole.substr(0, size));
        EXPECT_THROW(SafetensorsFile opened(file.path()), Error) << size;
    }
    EXPECT_THROW(SafetensorsFile opened("/nowhere/model.safetensors"), Error);
    EXPECT_THROW(SafetensorsFile opened(fs::temp_directory_path()), Error);
}

TEST(Safetensors, HeadersThatLieAreRefused) {
    expect_refused(RawFile(std::string()), "too few");
    expect_refused(RawFile(RawFile::length_bytes(100) + "{}"), "cut off");
    expect_refused(RawFile(RawFile::length_bytes(~std::uint64_t{0}) + "{}"), "no safetensors file");
    expect_refused(RawFile(RawFile::length_bytes(~std::uint64_t{0} - 7) + "{}"), "no safetensors file");
    expect_refused(RawFile("{\"a\":", 8), "JSON");
    expect_refused(RawFile("[1]", 8), "JSON");
    const auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
        return "{\"w\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
    };
    expect_refused(RawFile("{\"w\":3}", 8), "w lacks");
    expect_refused(RawFile("{\"w\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8), "w lacks");
    expect_refused(RawFile(tensor("7", "[2]", "[0,8]"), 8), "w lacks");
    expect_refused(RawFile(tensor("\"F32\"", "[-2]", "[0,8]"), 8), "shape");
    expect_refused(RawFile(tensor("\"F32\"", "[2.0]", "[0,8]"), 8), "shape");
    expect_refused(RawFile(tensor("\"F32\"", "2", "[0,8]"), 8), "shape");
    // The element count 2^32 * 2^32 overflows to 0, and so do the bytes of 2^62 four-byte elements.
    expect_refused(RawFile(tensor("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 8), "shape");
    expect_refused(RawFile(tensor("\"F32\"", "[4611686018427387904]", "[0,0]"), 8), "elements");
    expect_refused(RawFile(tensor("\"F32\"", "[18446744073709551615]", "[0,8]"), 8), "shape");
    expect_refused(RawFile(tensor("\"F32\"", "[2]", "[8,0]"), 8), "data_offsets");
    expect_refused(RawFile(tensor("\"F32\"", "[2]", "[-8,0]"), 8), "data_offsets");
    expect_refused(RawFile(tensor("\"F32\"", "[2]", "[0]"), 8), "data_offsets");
    expect_refused(RawFile(tensor("\"F32\"", "[2]", "[4,12]"), 8), "cut off");
    expect_refused(RawFile(tensor("\"F32\"", "[2]", "[18446744073709551608,18446744073709551615]"), 8),
                   "cut off");
    expect_refused(RawFile(tensor("\"F32\"", "[3]", "[0,8]"), 8), "3 elements of F32 but 8 bytes");
    expect_refused(RawFile(tensor("\"F16\"", "[2]", "[0,8]"), 8), "2 elements of F16 but 8 bytes");
    const std::string both =
        R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})";
    expect_refused(RawFile(both, 12), "a and b overlap");
    // A name with a line break, which must not split the message.
    expect_refused(RawFile("{\"a\\nb\":3}", 8), "a?b lacks");
}

TEST(Safetensors, HolesAndUnknownTypesDoNoHarm) {
    const std::string header =
        R"({"__metadata__":{"x":"y"},"a":{"dtype":"F16","shape":[2],"data_offsets":[8,12]},)"
        R"("b":{"dtype":"Q4_NEW","shape":[9],"data_offsets":[0,3]},"c":{"dtype":"F32","shape":[0],"data_offsets":[9,9]}}  )";
    const RawFile file(header, 20);
    const SafetensorsFile opened(file.path());
    EXPECT_EQ(opened.names(), (std::vector<std::string>{"a", "b", "c"}));
    EXPECT_EQ(value_at(opened.tensor("a"), 1), float_from_fp16(0x0101));
    EXPECT_THROW(opened.tensor("b"), Error);
}

}  // namespace
}  // namespace keyhole::test_safetensors
