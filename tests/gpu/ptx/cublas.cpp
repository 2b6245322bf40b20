// Stand-ins for the entry points of cuBLAS that products need. Sums are floats, in the order of the factors.
#include "engine/base/half.h"
#include "tests/gpu/ptx/device.h"

#include <cublas_v2.h>

#include <cstring>

using ptx::Device;

struct cublasContext {
    cudaStream_t stream = nullptr;
};

namespace ptx {
namespace {

/// A column-major matrix of the device.
struct Matrix {
    const void* data;
    cudaDataType type;
    std::int64_t stride;

    std::size_t element() const { return type == CUDA_R_32F ? 4 : 2; }
    float at(std::int64_t row, std::int64_t column) const {
        const std::int64_t i = column * stride + row;
        if (type == CUDA_R_32F) return static_cast<const float*>(data)[i];
        const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[i];
        return type == CUDA_R_16F ? keyhole::float_from_fp16(bits) : keyhole::float_from_bf16(bits);
    }
    void check(std::int64_t n_rows, std::int64_t n_columns) const {
        const auto n = static_cast<std::uint64_t>((n_columns - 1) * stride + n_rows) * element();
        Device::get().memory().checked(data, n, "a factor of a product");
        if (reinterpret_cast<std::uint64_t>(data) % element() != 0) throw Fault("a factor is misaligned");
    }
};

/// c [m, n] = alpha * a [m, k] * b [k, n] + beta * c, where a and b are transposed as the arguments say.
void multiply(const Matrix& a, bool a_transposed, const Matrix& b, bool b_transposed, float* c,
              std::int64_t c_stride, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
              float beta) {
    a_transposed ? a.check(k, m) : a.check(m, k);
    b_transposed ? b.check(n, k) : b.check(k, n);
    Memory& memory = Device::get().memory();
    const auto c_bytes = static_cast<std::uint64_t>((n - 1) * c_stride + m) * 4;
    Buffer& buffer = memory.checked(c, c_bytes, "the result of a product");
    std::vector<float> wide(static_cast<std::size_t>(m * k)), sums(static_cast<std::size_t>(m));
    for (std::int64_t t = 0; t < k; ++t)
        for (std::int64_t i = 0; i < m; ++i)
            wide[static_cast<std::size_t>(t * m + i)] = a_transposed ? a.at(t, i) : a.at(i, t);
    for (std::int64_t j = 0; j < n; ++j) {
        std::fill(sums.begin(), sums.end(), 0.0f);
        for (std::int64_t t = 0; t < k; ++t) {
            const float factor = b_transposed ? b.at(j, t) : b.at(t, j);
            const float* of_t = wide.data() + t * m;
            for (std::int64_t i = 0; i < m; ++i) sums[static_cast<std::size_t>(i)] += of_t[i] * factor;
        }
        float* column = c + j * c_stride;
        for (std::int64_t i = 0; i < m; ++i)
            column[i] = alpha * sums[static_cast<std::size_t>(i)] + (beta != 0 ? beta * column[i] : 0.0f);
        memory.note_copy(buffer, reinterpret_cast<std::uint64_t>(column), static_cast<std::uint64_t>(m) * 4);
    }
}

}  // namespace
}  // namespace ptx

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
    if (Device::get().not_in_capture() != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = new cublasContext;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void* data, std::size_t n_bytes) {
    try {
        Device::get().memory().checked(data, n_bytes, "the workspace of cuBLAS");
    } catch (const ptx::Fault&) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) {
    return CUBLAS_STATUS_SUCCESS;
}
const char* cublasGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS ? "success" : "an error of the emulated cuBLAS";
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t a_form,
                                          cublasOperation_t b_form, int m, int n, int k, const void* alpha,
                                          const void* a, cudaDataType a_type, int a_stride, long long a_batch,
                                          const void* b, cudaDataType b_type, int b_stride, long long b_batch,
                                          const void* beta, void* c, cudaDataType c_type, int c_stride,
                                          long long c_batch, int n_batch, cublasComputeType_t,
                                          cublasGemmAlgo_t) {
    const bool a_transposed = a_form == CUBLAS_OP_T, b_transposed = b_form == CUBLAS_OP_T;
    if (m <= 0 || n <= 0 || k <= 0 || c_type != CUDA_R_32F || a_stride < (a_transposed ? k : m) ||
        b_stride < (b_transposed ? n : k) || c_stride < m)
        return CUBLAS_STATUS_INVALID_VALUE;
    const float by = *static_cast<const float*>(alpha), old = *static_cast<const float*>(beta);
    const cudaError_t error = Device::get().submit(handle->stream, [=] {
        for (long long i = 0; i < n_batch; ++i) {
            const auto at = [&](const void* data, long long stride, cudaDataType type) {
                return static_cast<const std::byte*>(data) + i * stride * (type == CUDA_R_32F ? 4 : 2);
            };
            ptx::multiply({at(a, a_batch, a_type), a_type, a_stride}, a_transposed,
                          {at(b, b_batch, b_type), b_type, b_stride}, b_transposed,
                          static_cast<float*>(c) + i * c_batch, c_stride, m, n, k, by, old);
        }
    });
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
